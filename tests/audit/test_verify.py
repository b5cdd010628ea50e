"""`engcmp verify` finds every kind of tampering, names the file, changes nothing, and passes on what is sound."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from homes import (
    CHECKOUT,
    Q4,
    Q8,
    STUDY,
    Here,
    change,
    current_receipt,
    engcmp,
    engcmp_here,
    everything,
    flipped,
    head_file,
    named_files,
    output_file,
    replace_file,
    verified,
)  # fmt: skip

from engcmp_assets.audit.recompute import differences
from engcmp_assets.kernel.study import Study
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Place, Store, head_bytes

# One output of each type of file that a study has: artifact, arm, output.
KINDS = {
    "gguf": ("sources", Q4, "q4_0.gguf"),
    "so": ("sources", Q8, "engine-library"),
    "reference safetensors": ("reference_rows", Q4, "rows/pa/code-1"),
    "captured safetensors": ("captured_rows/pa", Q4, "rows/2.1/json-1"),
    "parquet": ("scores", Q8, "rows-pa.parquet"),
    "json": ("comparisons", None, "comparisons.json"),
    "png": ("summaries", Q4, "plot.png"),
    "html": ("publication", None, "SUMMARY.html"),
    "md": ("publication", None, "SUMMARY.md"),
}
_DRAW = random.Random(20261129)


def somewhere(data: bytes) -> bytes:
    return flipped(_DRAW.randrange(len(data)))(data)


TAMPERING: dict[str, Callable[[bytes], bytes]] = {
    "first byte flipped": flipped(0),
    "last byte flipped": flipped(-1),
    "a byte flipped": somewhere,
    "another byte flipped": somewhere,
    "a third byte flipped": somewhere,
    "one byte appended": lambda data: data + b"\n",
    "last byte cut": lambda data: data[:-1],
    "cut to nothing": lambda _: b"",
}


def file_of_kind(home: Path, kind: str) -> Path:
    artifact, arm, output = KINDS[kind]
    return output_file(home, current_receipt(home, artifact, arm), output)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that change no figure: without recomputing, which takes seconds."""
    monkeypatch.setattr("engcmp_assets.audit.verify.recompute", lambda session, reached, sha256: iter(()))


@pytest.fixture
def light(no_figures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that change neither stored files nor figures."""
    monkeypatch.setattr("engcmp_assets.audit.verify._fault", lambda store, blob: None)


def below(home: Path, path: Path) -> str:
    return str(path.relative_to(home))


# ---------------------------------------------------------------- what is sound


def test_an_untouched_home_verifies_offline_and_stays_as_it_is(home_copy: Path) -> None:
    """No Dagster instance, no network, no index of tasks, and at another place than it was measured."""
    shutil.rmtree(home_copy / "dagster")
    shutil.rmtree(home_copy / "tasks")
    before = everything(home_copy)
    apart = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
    done = engcmp("verify", STUDY, home=home_copy, prefix=apart, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified" in done.stdout
    assert re.search(r"\d+ artifacts with \d+ figures were recomputed from the row files and agree", done.stdout)
    assert everything(home_copy) == before


def test_a_reader_without_the_right_to_write_can_verify(home_copy: Path) -> None:
    folders = [path for path in (home_copy, *home_copy.rglob("*")) if path.is_dir() and not path.is_symlink()]
    without_rights: list[str] = []
    if os.geteuid() == 0:  # root without its capabilities is held by the modes of files like anybody else
        without_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        if shutil.which("setpriv") is None:
            pytest.skip("root needs setpriv to give up its rights")
    for folder in folders:
        folder.chmod(0o555)
    try:
        probe = subprocess.run([*without_rights, "touch", str(home_copy / "x")], capture_output=True, check=False)
        done = engcmp("verify", STUDY, home=home_copy, prefix=without_rights)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert probe.returncode != 0
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified" in done.stdout


def test_verify_never_loads_dagster(home_copy: Path) -> None:
    program = (
        "import sys\nfrom engcmp_assets.commands.main import cli\n"
        f"codes = [cli.main([*command, '{STUDY}'], standalone_mode=False) for command in (['trace', '--list'], ['verify'])]\n"
        "print(codes, 'dagster' in sys.modules)"
    )
    settings = os.environ | {"ENGCMP_HOME": str(home_copy)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=settings, cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[None, 0] False"
    assert "Dagster events agree" in done.stdout


@pytest.mark.usefixtures("measured_home")  # which freezes the study
def test_a_home_without_results_is_an_error_that_says_what_to_do(tmp_path: Path, here: Here) -> None:
    done = here("verify", STUDY, home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"engcmp: no results here ({tmp_path}); `make demo`")
    (tmp_path / "heads").mkdir()
    with pytest.raises(EngcmpError, match="no result of smollm2-cpu in this store"):
        verified(tmp_path)


# ---------------------------------------------------------------- stored files


@pytest.mark.parametrize("how", TAMPERING)
def test_a_changed_file_of_any_type_is_named_and_no_other_is(home_copy: Path, how: str) -> None:
    for kind in KINDS:
        change(file_of_kind(home_copy, kind), TAMPERING[how])
    assert named_files(home_copy) == {below(home_copy, file_of_kind(home_copy, kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", ["html"])
def test_one_changed_file_fails_the_command_with_its_name(home_copy: Path, kind: str) -> None:
    path = file_of_kind(home_copy, kind)
    change(path, somewhere)
    before = everything(home_copy)
    done = engcmp_here("verify", STUDY, ENGCMP_HOME=str(home_copy))
    assert done.returncode == 1
    assert f"FAILED {below(home_copy, path)}: bytes do not have the hash" in done.stdout
    assert f"SUMMARY.html of publication, study {STUDY}" in done.stdout, "a hash tells nobody what the file is"
    assert "Traceback" not in done.stderr
    assert everything(home_copy) == before


def test_deleted_files_are_named(home_copy: Path) -> None:
    expected = set()
    for kind in KINDS:
        path = file_of_kind(home_copy, kind)
        path.unlink()
        expected.add(below(home_copy, path))
    problems = verified(home_copy).problems
    assert {problem.file for problem in problems if problem.what.startswith("file is missing: ")} == expected
    links = {problem.file for problem in problems} - expected
    assert all(name.startswith("views/") for name in links)


def test_files_replaced_by_other_valid_ones_are_named(home_copy: Path) -> None:
    others = {
        "gguf": ("sources", Q4, "q8_0.gguf"), "captured safetensors": ("captured_rows/pa", Q8, "rows/2.1/json-1"),
        "reference safetensors": ("reference_rows", Q4, "rows/pa/json-1"), "parquet": ("scores", Q4, "rows-pa.parquet"),
        "json": ("tails", Q4, "tails.json"), "png": ("summaries", Q8, "plot.png"),
    }  # fmt: skip
    copies = {
        kind: output_file(home_copy, current_receipt(home_copy, *place[:2]), place[2]).read_bytes()
        for kind, place in others.items()
    }
    for kind, data in copies.items():
        replace_file(file_of_kind(home_copy, kind), data)
    assert named_files(home_copy) == {below(home_copy, file_of_kind(home_copy, kind)) for kind in others}


def test_a_file_replaced_by_a_link_pipe_or_folder_is_named(home_copy: Path, tmp_path: Path) -> None:
    link, pipe, folder = (file_of_kind(home_copy, kind) for kind in ("md", "json", "png"))
    shutil.move(link, tmp_path / "same bytes")
    link.symlink_to(tmp_path / "same bytes")
    pipe.unlink()
    os.mkfifo(pipe)
    folder.unlink()
    folder.mkdir()
    expected = {below(home_copy, path) for path in (link, pipe, folder)}
    assert expected <= named_files(home_copy)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("many", [False, True])
def test_a_changed_file_that_only_history_names_is_found_too(
    home_copy: Path, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second measurement supersedes the first; the first is evidence all the same, where very many are hashed by another process too."""
    if many:
        monkeypatch.setattr("engcmp_assets.audit.reached._MANY", 0)
    old = current_receipt(home_copy, "publication")
    data = b"an older page"
    store = Store(home_copy)
    blob = store.put_bytes(data, "md")
    old["outputs"].append(
        {
            **old["outputs"][0],
            "name": "old.md",
            "sha256": blob.sha256,
            "bytes": blob.bytes,
            "suffix": "md",
            "role": "view",
        }
    )
    old["finished_at"] = "2020-01-01T00:00:00.000+00:00"
    raw = canonical_bytes(old)
    receipt = home_copy / "receipts" / f"{sha256_bytes(raw)}.json"
    receipt.write_bytes(raw)
    assert not named_files(home_copy)
    change(store.path(blob), somewhere)
    assert named_files(home_copy) == {below(home_copy, store.path(blob))}
    store.path(blob).unlink()  # what no current result needs may be collected
    assert not named_files(home_copy)
    change(receipt, somewhere)
    assert named_files(home_copy) == {below(home_copy, receipt)}


# ---------------------------------------------------------------- receipts and heads


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("how", [*TAMPERING, "deleted", "another receipt's bytes"])
def test_a_changed_receipt_is_named(home_copy: Path, how: str) -> None:
    sha256 = json.loads(head_file(home_copy, "reference_rows", Q4).read_bytes())["receipt_sha256"]
    path = home_copy / "receipts" / f"{sha256}.json"
    if how == "deleted":
        path.unlink()
    elif how == "another receipt's bytes":
        other = json.loads(head_file(home_copy, "scores", Q4).read_bytes())["receipt_sha256"]
        replace_file(path, (home_copy / "receipts" / f"{other}.json").read_bytes())
    else:
        change(path, TAMPERING[how])
    assert below(home_copy, path) in named_files(home_copy)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("how", [*TAMPERING, "deleted", "link", "folder", "pipe"])
@pytest.mark.parametrize(("artifact", "arm"), [("captured_rows/pa", Q4), ("publication", None)])
def test_a_changed_head_is_named(home_copy: Path, artifact: str, arm: str | None, how: str) -> None:
    path = head_file(home_copy, artifact, arm)
    data = path.read_bytes()
    if how in TAMPERING:
        change(path, TAMPERING[how])
    else:
        path.unlink()
    if how == "link":
        (home_copy / "elsewhere.json").write_bytes(data)
        path.symlink_to(home_copy / "elsewhere.json")
    elif how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    assert below(home_copy, path) in named_files(home_copy)


@pytest.mark.usefixtures("light")
def test_every_single_head_and_receipt_counts(home_copy: Path) -> None:
    """One after the other, changed and put back."""
    paths = [*(home_copy / "heads").rglob("*.json"), *(home_copy / "receipts").iterdir()]
    for path in paths:
        data = path.read_bytes()
        change(path, somewhere)
        assert below(home_copy, path) in named_files(home_copy)
        replace_file(path, data)


@pytest.mark.usefixtures("light")
def test_a_head_that_points_to_another_arm_s_receipt_is_named(home_copy: Path) -> None:
    for artifact in ("scores", "reference_rows", "summaries"):
        other = json.loads(head_file(home_copy, artifact, Q8).read_bytes())["receipt_sha256"]
        place = Place(STUDY, Q4.replace("/", "~"), artifact)
        replace_file(head_file(home_copy, artifact, Q4), head_bytes(place, other))
        assert below(home_copy, head_file(home_copy, artifact, Q4)) in named_files(home_copy)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(("artifact", "arm"), [("publication", None), ("summaries", Q4), ("captured_rows/pa", Q8)])
def test_a_head_put_back_to_an_older_receipt_of_the_same_content_is_named(
    home_copy: Path, artifact: str, arm: str | None
) -> None:
    receipt = current_receipt(home_copy, artifact, arm)
    receipt["finished_at"] = "2026-01-01T00:00:00.000+00:00"
    data = canonical_bytes(receipt)
    older = sha256_bytes(data)
    (home_copy / "receipts" / f"{older}.json").write_bytes(data)
    assert not named_files(home_copy)
    place = Place(STUDY, "_study" if arm is None else arm.replace("/", "~"), artifact)
    replace_file(head_file(home_copy, artifact, arm), head_bytes(place, older))
    assert below(home_copy, head_file(home_copy, artifact, arm)) in named_files(home_copy)


@pytest.mark.usefixtures("light")
def test_a_deleted_head_folder_of_an_arm_is_named_head_by_head(home_copy: Path) -> None:
    folder = home_copy / "heads" / STUDY / Q8.replace("/", "~")
    gone = {below(home_copy, path) for path in folder.rglob("*.json")}
    shutil.rmtree(folder)
    assert len(gone) > 5
    assert gone <= named_files(home_copy)


@pytest.mark.usefixtures("light")
def test_deleted_heads_of_a_whole_study_are_named(home_copy: Path, here: Here) -> None:
    gone = {below(home_copy, path) for path in (home_copy / "heads").rglob("*.json")}
    shutil.rmtree(home_copy / "heads")
    done = here("verify", STUDY, home=home_copy)
    assert done.returncode == 1
    for name in gone:
        assert f"FAILED {name}: head is missing" in done.stdout


@pytest.mark.usefixtures("light")
def test_an_arm_that_was_removed_with_its_receipts_is_missed_by_what_used_it(home_copy: Path) -> None:
    used = set()
    for path in (home_copy / "heads" / STUDY / Q8.replace("/", "~")).rglob("*.json"):
        used.add(f"receipts/{json.loads(path.read_bytes())['receipt_sha256']}.json")
    for name in used:
        (home_copy / name).unlink()
    shutil.rmtree(home_copy / "heads" / STUDY / Q8.replace("/", "~"))
    assert used & named_files(home_copy)


@pytest.mark.usefixtures("light")
def test_what_is_no_head_and_no_receipt_is_named(home_copy: Path) -> None:
    strange = [
        home_copy / "heads" / STUDY / "notes.txt", home_copy / "heads" / STUDY / "_study" / "tails.json",
        home_copy / "receipts" / "notes.txt", home_copy / "receipts" / f"{'0' * 64}.json",
        home_copy / "heads" / STUDY / "_study" / "new\nline.json",
    ]  # fmt: skip
    for path in strange:
        path.write_bytes(b"{}\n")
    names = named_files(home_copy)
    assert {below(home_copy, path) for path in strange[:-1]} <= names
    assert any("new\\nline" in name for name in names)


# ---------------------------------------------------------------- views


@pytest.mark.usefixtures("light")
def test_a_view_that_is_a_file_or_leads_elsewhere_or_is_gone_is_named(home_copy: Path) -> None:
    views = home_copy / "views" / STUDY
    page, rows, plot = (
        views / "_study/publication/SUMMARY.html", views / Q4.replace("/", "~") / "scores/rows-pa.parquet",
        views / Q8.replace("/", "~") / "tails/plot.png",
    )  # fmt: skip
    data = page.read_bytes()
    page.unlink()
    page.write_bytes(data)  # the same bytes, but they would not follow the store
    other = (views / Q8.replace("/", "~") / "scores/rows-pa.parquet").resolve()
    rows.unlink()
    rows.symlink_to(other)
    plot.unlink()
    assert named_files(home_copy) == {below(home_copy, path) for path in (page, rows, plot)}
    plot.symlink_to(plot)  # a loop
    assert below(home_copy, plot) in named_files(home_copy)


# ---------------------------------------------------------------- the frozen protocol


FROZEN_FILES = ("FROZEN.json", "protocol.toml", "prompt_set.json", "texts/prose-1.txt")


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("name", FROZEN_FILES)
def test_a_changed_frozen_file_is_named(home_copy: Path, protocol_copy: Path, name: str) -> None:
    path = protocol_copy / name
    original = path.read_bytes()
    for how, tamper in TAMPERING.items():
        path.write_bytes(tamper(original))
        assert str(path) in named_files(home_copy), how
    path.unlink()
    if name == "protocol.toml":
        return  # without it there is no study of this name
    assert str(path) in named_files(home_copy)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("name", ["FROZEN.json", "protocol.toml"])
def test_the_command_names_a_changed_frozen_file(home_copy: Path, protocol_copy: Path, name: str, here: Here) -> None:
    change(protocol_copy / name, flipped(0))
    done = here("verify", STUDY, home=home_copy)
    assert done.returncode == 1
    assert f"FAILED {protocol_copy / name}" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("light")
def test_all_changed_frozen_files_are_named_at_once(home_copy: Path, protocol_copy: Path) -> None:
    changed = [protocol_copy / name for name in ("texts/prose-1.txt", "texts/json-1.txt", "prompt_set.json")]
    for path in changed:
        change(path, somewhere)
    (protocol_copy / "texts/more.txt").write_text("one more")
    assert {str(path) for path in [*changed, protocol_copy / "texts/more.txt"]} <= named_files(home_copy)


@pytest.mark.usefixtures("light")
def test_results_of_another_freeze_do_not_verify(home_copy: Path, protocol_copy: Path, here: Here) -> None:
    """An edited protocol that was frozen anew is another protocol: the old results prove nothing of it."""
    path = protocol_copy / "protocol.toml"
    path.write_bytes(path.read_bytes().replace(b"replicates = 200\n", b"replicates = 201\n"))
    assert here("amend", STUDY, "--because", "a test", home=home_copy).returncode == 0
    problems = [problem for problem in verified(home_copy).problems if "another frozen hash" in problem.what]
    assert len(problems) == len(list((home_copy / "heads").rglob("*.json")))
    assert all(problem.file.startswith("receipts/") for problem in problems)


@pytest.mark.usefixtures("light")
def test_nothing_is_claimed_of_an_arm_that_a_later_freeze_left_out(
    home_copy: Path, protocol_copy: Path, here: Here
) -> None:
    """Its heads stay, whole and under their own freeze; the others must be made under the new one."""
    path = protocol_copy / "protocol.toml"
    text = path.read_text().replace(f'[[arms]]\narm = "{Q8}"\n', "").replace(f'arms = ["{Q8}"]', f'arms = ["{Q4}"]')
    pair = re.search(r'\[\[comparisons\]\]\npair_id = "q4_0-vs-q8_0"\n(?:[^\n\[]+\n)+', text)
    assert pair
    path.write_text(text.replace(pair[0], ""))
    assert here("amend", STUDY, "--because", "a test", home=home_copy).returncode == 0
    left_out = {
        json.loads(head.read_bytes())["receipt_sha256"]
        for head in (home_copy / "heads" / STUDY / Q8.replace("/", "~")).rglob("*.json")
    }
    names = named_files(home_copy)
    assert left_out and len(names) == len(list((home_copy / "heads").rglob("*.json"))) - len(left_out)
    assert not names & {f"receipts/{sha256}.json" for sha256 in left_out}


def test_a_number_in_words_that_is_only_rounding_is_no_difference_and_any_other_is() -> None:
    told = "KL divergence between two captures: {} nats; between runs of one arm: 0"
    for fresh, stored in (("1.619e-15", "1.397e-15"), ("0", "-1.610e-15")):
        assert list(differences(told.format(fresh), told.format(stored), "sentence")) == []
    for fresh, stored in (("1.619e-11", "1.397e-11"), ("0.4222", "0.4223"), ("0", "1.000e-12")):
        assert len(list(differences(told.format(fresh), told.format(stored), "sentence"))) == 1


# ---------------------------------------------------------------- for machines


def test_json_holds_every_problem_with_its_file(home_copy: Path, here: Here, study: Study) -> None:
    path = file_of_kind(home_copy, "md")
    change(path, flipped(3))
    done = here("verify", STUDY, "--json", home=home_copy)
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert document["problems"] == [
        {
            "file": below(home_copy, path),
            "what": f"bytes do not have the hash of the file's name: SUMMARY.md of publication, study {STUDY}",
        }
    ]
    assert document["frozen_sha256"] == study.frozen_sha256


def test_a_terminal_without_these_letters_still_gets_the_whole_report(home_copy: Path) -> None:
    (home_copy / "heads" / STUDY / os.fsdecode(b"\xff\xfe.json")).write_bytes(b"x")
    (home_copy / "heads" / STUDY / "größe.json").write_bytes(b"x")
    done = engcmp("verify", STUDY, home=home_copy, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 1
    assert "2 problems" in done.stdout
    assert "Traceback" not in done.stderr
