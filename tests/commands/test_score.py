"""`engcmp score`, `tails` and `bar` as a user runs them: right figures, all results or none, one line for bad input."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from homes import CHECKOUT, STUDY, Here, assert_one_clear_line, engcmp, start_engcmp

sys.path.extend(str(Path(__file__).parent.parent / name) for name in ("file_scores", "row_layouts", "benchmarks"))

from bench_score import write_panel, write_rows
from made import Made, answers, kl_top20, made, with_topk_reference
from writing import by_hand, light_columns, save_light, save_raw

from engcmp_assets.commands import score as command
from engcmp_assets.kernel.panel_files import parse_panel_file
from engcmp_resources.canonical import sha256_file

Q4, Q8 = "q4_0~llamacpp@b11549", "q8_0~llamacpp@b11549"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.fixture
def three(tmp_path: Path) -> Made:
    """A panel with a reference and two arms, written."""
    one = made(tmp_path / "data", windows=4)
    for side in ("reference", "A", "B"):
        one.write(side)
    return one


def arguments(one: Made, *more: str, arms: str = "AB") -> list[str]:
    reference = ["--reference", str(one.reference)] if one.document["reference"] != "none" else []
    sides = [text for arm in arms for text in ("--arm", f"{arm}={one.folder / arm}")]
    return ["score", "--panel", str(one.panel), *reference, *sides, "--out", str(one.folder / "out"), *more]


def score(here: Here, one: Made, *more: str, arms: str = "AB") -> subprocess.CompletedProcess[str]:
    return here(*arguments(one, *more, arms=arms), home=one.folder / "home")


def refused(here: Here, one: Made, *words: str, more: tuple[str, ...] = (), arms: str = "AB") -> None:
    """One clear line, and nothing written: not the results, not half of them, not a folder for them."""
    before = sorted(one.folder.parent.rglob("*"))
    assert_one_clear_line(score(here, one, *more, arms=arms), *words)
    assert sorted(one.folder.parent.rglob("*")) == before


def document(one: Made, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((one.folder / "out" / name).read_bytes())
    return found


def names(out: Path) -> set[str]:
    return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}


# ---------------------------------------------------------------- figures


def test_figures_are_those_that_the_assets_published_of_the_same_rows(
    here: Here, measured_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_ABSOLUTE", 1e-12)  # the home may have been scored by another version of the sums
    view = measured_home / "views" / STUDY
    rows = "captured_rows/pa/rows"
    done = here(
        "score", "--panel", str(view / Q4 / "prompt_set/pa.json"), "--reference", str(view / Q4 / "reference_rows/rows/pa"),
        "--arm", f"Q4={view / Q4 / rows / '1.1'}", "--arm", f"Q4r={view / Q4 / rows / '1.2'}", "--arm", f"Q8={view / Q8 / rows / '1.1'}",
        "--arm", f"Q8r={view / Q8 / rows / '1.2'}", "--pair", "mean(Q8,Q8r),Q4", "--pair", "Q8,Q4", "--repeat", "Q4,Q4r",
        "--repeat", "Q8,Q8r", "--out", str(tmp_path / "out"), home=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((view / "_study/publication/SUMMARY.json").read_bytes())
    looked_at = 0
    for arm, own in (("Q4", "q4_0/llamacpp@b11549"), ("Q8", "q8_0/llamacpp@b11549")):
        found = json.loads((tmp_path / "out" / f"{arm}.json").read_bytes())
        (published,) = (one for one in summary["arms"] if one["arm"] == own)
        for figure in published["figures"]:
            if figure["panel"] == "pa":
                scored = of_population(found, figure["population"])[figure["measure"]]
                assert scored["mean"] == pytest.approx(figure["value"], rel=1e-12, abs=1e-14)
                ends = [figure["interval"][end] for end in ("low", "high")]
                assert scored["interval95"] == pytest.approx(ends, rel=1e-12, abs=1e-12)
                assert (scored["rows"], scored["clusters"]) == (figure["rows"], figure["clusters"])
                looked_at += 1
        tails = json.loads((view / own.replace("/", "~") / "tails/tails.json").read_bytes())["panels"]["pa"]
        ours = json.loads((tmp_path / "out" / "tails" / f"{arm}.json").read_bytes())
        for name in ("overall", "by_block", "by_bucket"):
            assert not list(command._differences(tails[name], ours[name]))
    assert looked_at == 40
    (pair,) = (one for one in summary["comparisons"] if one["pair_id"] == "q4_0-vs-q8_0")
    for file in ("Q8-vs-Q4.json", "mean-Q8-Q8r-vs-Q4.json"):
        found, equal = json.loads((tmp_path / "out" / file).read_bytes()), 0
        for figure in pair["figures"]:
            if figure["panel"] != "pa" or not (
                look := of_population(found, figure["population"]).get(figure["measure"])
            ):
                continue
            ends = [figure["interval"][end] for end in ("low", "high")]
            assert look["difference"] == pytest.approx(figure["value"], rel=1e-12, abs=1e-14)
            assert look["interval95"] == pytest.approx(ends, rel=1e-12, abs=1e-12)
            assert look["leave_one_out"] == pytest.approx(figure["leave_one_out"], rel=1e-12, abs=1e-12)
            assert look["sign_clusters"] == figure["sign_clusters"]
            assert look["largest_cluster"]["cluster"] == figure["largest_cluster"]["cluster"]
            equal += 1
        assert equal == 20
        assert found["measures"]["kl_full"]["verdict"] == "resolved"
    apart = json.loads((tmp_path / "out" / "Q8-vs-Q4.json").read_bytes())["apart"]
    assert apart["rows"]["rows_bit_identical"]["mean"] == 0
    assert apart["floor"]["Q4,Q4r"]["rows_bit_identical"]["mean"] == 1
    assert apart["floor"]["Q8,Q8r"]["kl_pair_full"]["mean"] == 0


def of_population(found: dict[str, Any], population: str) -> dict[str, Any]:
    kind, _, name = population.partition(":")
    own: dict[str, Any] = found["measures"] if kind == "all" else found[f"by_{kind}"][name]
    return own


def test_means_by_window_block_bucket_and_role_are_of_the_rows_that_they_name(here: Here, tmp_path: Path) -> None:
    one = made(tmp_path / "data", windows=4, roles=lambda row: ("context", "generated", "trailing")[min(row // 3, 2)])
    for side in ("reference", "A"):
        one.write(side)
    assert score(here, one, arms="A").returncode == 0
    found, kl = document(one, "A.json"), {}
    rows = zip(one.column("reference"), one.column("A"), strict=True)
    values = iter([answers(p, q, token)["kl_full"] for (p, token), (q, _) in rows])
    for window in one.windows:
        for role in window["roles"]:
            value = next(values)
            for key in (
                ("window", window["window_id"]),
                *((k, window[k]) for k in ("block", "bucket")),
                ("role", role),
            ):
                kl.setdefault(key, []).append(value)
    for (kind, name), own in kl.items():
        figure = found[f"by_{kind}"][name]["kl_full"]
        assert (figure if kind == "window" else figure["mean"]) == pytest.approx(np.mean(own), rel=1e-12), (kind, name)
    assert sum(len(found[f"by_{kind}"]) for kind in ("window", "block", "bucket", "role")) == len(kl) == 4 + 2 + 2 + 3


def test_what_was_not_measured_has_a_reason_beside_it(here: Here, three: Made) -> None:
    assert score(here, three, "--pair", "A,B").returncode == 0
    figure = document(three, "A.json")["measures"]["kl_full"]
    assert figure["interval95"] is None and "2 clusters" in figure["reason"]
    look = document(three, "A-vs-B.json")["measures"]["kl_full"]
    assert "no floor" in look["sentence"]


def test_the_whole_output_is_there_and_nothing_else(here: Here, three: Made) -> None:
    done = score(here, three, "--pair", "A,B", "--pair", "B,A", "--pair", "A,B", "--repeat", "A, B")
    assert done.returncode == 0, done.stderr
    assert names(three.folder / "out") == {
        "A.json", "A.rows.parquet", "B.json", "B.rows.parquet", "tails/A.json", "tails/B.json", "A-vs-B.json", "B-vs-A.json"
    }  # fmt: skip
    assert not [path for path in three.folder.iterdir() if path.name.startswith(".")]
    table = pq.read_table(three.folder / "out/A.rows.parquet")
    assert table.column("position").to_pylist() == [row for window in three.windows for row in window["positions"]]
    assert all(field.metadata[b"unit"] for field in table.schema)
    assert "score made: window w3, 20/20 rows" in done.stderr
    one, other = document(three, "A-vs-B.json"), document(three, "B-vs-A.json")
    assert one["measures"]["nll"]["difference"] == -other["measures"]["nll"]["difference"]


def test_threads_and_the_order_of_arms_give_the_same_bytes(here: Here, three: Made) -> None:
    kept = {}
    for jobs, arms in ((1, "AB"), (2, "AB"), (2, "BA")):
        assert score(here, three, "--pair", "A,B", "--jobs", str(jobs), arms=arms).returncode == 0
        out = three.folder / "out"
        found = {name: (out / name).read_bytes() for name in names(out)}
        kept = kept or found
        assert found == kept
        shutil.rmtree(out)


def test_inputs_are_named_with_their_sizes_and_hashed_where_it_is_asked_for(here: Here, three: Made) -> None:
    files = [*sorted(three.reference.iterdir()), *sorted((three.folder / "A").iterdir())]
    for hashed in (False, True):
        done = score(here, three, *["--hash-inputs"] * hashed, arms="A")
        panel, *inputs = document(three, "A.json")["inputs"]
        assert panel == {
            "name": "panel.json", "of": "panel", "bytes": three.panel.stat().st_size, "sha256": sha256_file(three.panel)
        }  # fmt: skip
        assert [(one["name"], one["bytes"]) for one in inputs] == [(path.name, path.stat().st_size) for path in files]
        assert [one["sha256"] for one in inputs] == [sha256_file(path) if hashed else None for path in files]
        assert ("hashing: w0.safetensors" in done.stderr) is hashed
        shutil.rmtree(three.folder / "out")


def test_a_dump_s_hash_is_that_of_what_sha256sum_prints_in_its_folder(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    lines = subprocess.run("sha256sum *", shell=True, cwd=tmp_path, capture_output=True, check=True).stdout
    assert command._digest(tmp_path) == hashlib.sha256(lines).hexdigest()


def test_a_panel_without_a_reference_has_no_tails(here: Here, tmp_path: Path) -> None:
    one = made(tmp_path / "data", reference="none")
    one.write("A")
    one.write("B")
    assert score(here, one, "--pair", "A,B").returncode == 0
    assert names(one.folder / "out") == {"A.json", "A.rows.parquet", "B.json", "B.rows.parquet", "A-vs-B.json"}
    assert document(one, "A-vs-B.json")["declared"]["primary"] == "nll"
    assert document(one, "A-vs-B.json")["apart"]["rows"]["kl_pair_full"]["mean"] > 0


@pytest.fixture
def lights(tmp_path: Path) -> Made:
    """A panel of ten documents with a full arm A and light arms L and M, all of them near the reference."""
    one = made(tmp_path / "data", windows=20, vocab=33, sides=("reference", "A", "L", "M"))
    for side in ("reference", "A"):
        one.write(side)
    for side in ("L", "M"):
        one.write_light(side)
    return one


def test_light_arms_are_scored_beside_full_ones_and_say_what_they_lack(here: Here, lights: Made) -> None:
    done = score(here, lights, "--pair", "A,L", "--pair", "L,M", "--repeat", "L,M", arms="ALM")
    assert done.returncode == 0, done.stderr
    arm, full = document(lights, "L.json")["measures"], document(lights, "A.json")["measures"]
    rows = lights.column("L")
    teacher = [row for row, _ in lights.column("reference")]
    right = np.mean([kl_top20(p, q) for p, (q, _) in zip(teacher, rows, strict=True)])
    assert arm["kl_top20"]["mean"] == pytest.approx(right, rel=1e-9)
    assert arm["kl_top20"]["rows_at_rest_floor"] == 0 and arm["kl_top20"]["interval95"] is not None
    for name in ("kl_full", "entropy", "excess_entropy", "entropy_ratio"):
        assert arm[name]["mean"] is None and "whole row is needed" in arm[name]["reason"]
        assert full[name]["mean"] is not None
    assert full["kl_top20"]["mean"] <= full["kl_full"]["mean"]
    names_of = {side: pq.read_schema(lights.folder / f"out/{side}.rows.parquet").names for side in "AL"}
    assert {"kl_full", "kl_top20", "entropy"} <= set(names_of["A"])
    assert "kl_top20" in names_of["L"] and not {"kl_full", "entropy"} & set(names_of["L"])
    assert json.loads((lights.folder / "out/tails/L.json").read_bytes())["measure"] == "kl_top20"
    assert json.loads((lights.folder / "out/tails/A.json").read_bytes())["measure"] == "kl_full"
    pair = document(lights, "A-vs-L.json")
    assert pair["declared"]["primary"] == "kl_top20" and "kl_full" not in pair["measures"]
    assert "whole row" in pair["missing"]["kl_full"]["missing"]
    apart = pair["apart"]["rows"]
    assert apart["kl_pair20"]["mean"] > 0 and apart["rows_bit_identical"]["mean"] is None
    assert "no raw rows" in apart["rows_bit_identical"]["reason"]
    floor = document(lights, "L-vs-M.json")["apart"]["floor"]["L,M"]
    assert floor["kl_pair20"]["mean"] > 0 and floor["kl_pair_full"]["mean"] is None
    assert set(pair["derived"]["distance_ratio"]) == {"kl_top20"}


def test_equal_arms_have_a_verdict_that_says_so(here: Here, lights: Made) -> None:
    """Of light arms what was kept is equal and no more is known; of full ones every row is."""
    for side, again in (("L", "N"), ("A", "B")):
        lights.rows[again] = lights.rows[side]
    lights.write_light("N")
    lights.write("B")
    done = score(here, lights, "--pair", "L,N", "--pair", "A,B", "--pair", "mean(L,M),N", arms="ALMNB")
    assert done.returncode == 0, done.stderr
    kept, whole = document(lights, "L-vs-N.json"), document(lights, "A-vs-B.json")
    looks = [kept["measures"], *kept["by_block"].values(), *kept["by_bucket"].values()]
    for look in [one for by in looks for one in by.values()]:
        assert (look["verdict"], look["bound"], look["difference"]) == ("descriptive", 0.0, 0.0)
        assert "same 20 most probable tokens" in look["sentence"] and "cannot tell" in look["sentence"]
    assert {one["verdict"] for one in whole["measures"].values()} == {"bit-identical"}
    assert "without a bound" not in done.stdout and "equal bit for bit" in done.stdout
    (mixed,) = (path for path in (lights.folder / "out").glob("mean*-vs-N.json"))
    words = {name: one["verdict"] for name, one in json.loads(mixed.read_bytes())["measures"].items()}
    assert words["nll"] != "descriptive", "one of its runs is another"


def test_light_rows_that_were_rounded_are_flagged_with_what_that_costs(here: Here, lights: Made) -> None:
    for name, digits in (("L", None), ("M", 4)):
        for path in (lights.folder / name).glob("*.parquet"):
            table = pq.read_table(path).to_pydict()
            if digits:
                for row, (listed, own) in enumerate(
                    zip(table["top_log_probs"], table["next_token_log_prob"], strict=True)
                ):
                    table["top_log_probs"][row] = [math.floor(value * 10**digits) / 10**digits for value in listed]
                    table["next_token_log_prob"][row] = math.floor(own * 10**digits) / 10**digits
            pq.write_table(pa.table(table, schema=pq.read_schema(path)), path)
    done = score(here, lights, arms="LM")
    assert done.returncode == 0, done.stderr
    assert document(lights, "L.json")["rounded"] is None
    found = document(lights, "M.json")["rounded"]
    assert found["step"] == 0.0001 and "off by up to 5e-05 nats" in found["sentence"]
    assert f"M: {found['sentence']}." in done.stdout and "\nL: " not in done.stdout


@pytest.mark.parametrize("reference", ["none", "topk"])
def test_light_arms_on_panels_with_other_references(here: Here, tmp_path: Path, reference: str) -> None:
    one = made(tmp_path / "data", vocab=33, reference=reference, sides=("reference", "A", "L"))
    if reference == "topk":
        with_topk_reference(one, 24)
    one.write("A")
    one.write_light("L")
    assert score(here, one, "--pair", "A,L", arms="AL").returncode == 0
    primary = document(one, "A-vs-L.json")["declared"]["primary"]
    assert primary == ("kl_pb20" if reference == "topk" else "nll")
    assert document(one, "A-vs-L.json")["apart"]["rows"]["kl_pair20"]["mean"] > 0
    assert (one.folder / "out/tails/L.json").exists() == (reference == "topk")


def test_a_row_file_of_light_rows_has_tails_and_no_bar(here: Here, lights: Made) -> None:
    assert score(here, lights, arms="LM").returncode == 0
    out = lights.folder / "out"
    done = here("tails", str(out / "L.rows.parquet"), "--check", str(out / "tails/L.json"), home=lights.folder)
    assert done.returncode == 0, done.stdout
    done = here(
        "bar", "--candidate", str(out / "M.rows.parquet"), "--baseline", str(out / "L.rows.parquet"), home=lights.folder
    )
    assert_one_clear_line(done, "no KL from a reference over its whole vocabulary", "top 20")


def test_a_gap_is_closed_by_a_setting(here: Here, tmp_path: Path) -> None:
    one = made(tmp_path / "data", windows=20, tokens=20, sides=("reference", "A", "B", "S"), noise=0.3)
    for window in one.rows["B"]:
        far = 4 * (one.rows["B"][window] - one.rows["reference"][window])
        one.rows["B"][window] = one.rows["reference"][window] + far
        one.rows["S"][window] = one.rows["reference"][window] + far / 2
    for side in ("reference", "A", "B", "S"):
        one.write(side)
    done = score(here, one, "--gap", "A,B,S", arms="ABS")
    assert done.returncode == 0, done.stderr
    found = document(one, "gap-A-B-S.json")
    means = {arm: document(one, f"{arm}.json")["measures"]["kl_full"]["mean"] for arm in "ABS"}
    own = found["gap_closed"]["kl_full"]
    assert own["value"] == pytest.approx(1 - (means["S"] - means["A"]) / (means["B"] - means["A"]))
    assert 0.5 < own["interval95"][0] < own["value"] < own["interval95"][1] < 1.5
    assert f"A,B,S: gap closed by kl_full: {own['value']:.4g} of 1 (95 % interval" in done.stdout
    assert score(here, one, "--gap", "A,A,S", arms="AS").returncode == 1


def test_of_a_gap_that_is_not_resolved_nothing_is_closed(here: Here, three: Made) -> None:
    shutil.copytree(three.folder / "A", three.folder / "C")
    done = score(here, three, "--gap", "A,C,B", arms="ABC")
    assert done.returncode == 0, done.stderr
    assert document(three, "gap-A-C-B.json")["gap_closed"]["kl_full"]["value"] is None
    assert "A,C,B: gap closed by kl_full: none, the gap between baseline and candidate is not resolved" in done.stdout


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--arm", "A=x"), ("--arm A is given twice",)),
        (("--arm", "C"), ("--arm 'C' has no folder",)),
        (("--arm", "../C=x"), ("--arm '../C' is no name",)),
        (("--arm", "reference=x"), ("is the name of the reference",)),
        (("--arm", "a=x"), ("would share the file a.json",)),
        (("--arm", "A-vs-B=x", "--pair", "A,B"), ("would share the file A-vs-B.json",)),
        (("--arm", f"{'C' * 300}=x"), ("305 characters",)),
        (("--pair", "A,C"), ("--pair A,C", "no arm 'C'", "A, B")),
        (("--pair", "A"), ("--pair 'A' cannot be read",)),
        (("--pair", "mean(A,B,A"), ("cannot be read",)),
        (("--pair", "mean(A,A),B"), ("an arm is named twice",)),
        (("--pair", "mean(A),A"), ("compares an arm with itself",)),
        (("--gap", "A,B"), ("--gap 'A,B' cannot be read",)),
        (("--gap", "A,B,A"), ("names an arm twice",)),
        (("--gap", "A,B,C"), ("--gap A,B,C", "no arm 'C'")),
        (("--repeat", "A"), ("names one arm",)),
        (("--repeat", "A,C"), ("--repeat A,C", "no arm 'C'")),
    ],
    ids=lambda value: " ".join(value)[:30],
)  # fmt: skip
def test_a_request_that_cannot_be_met_is_refused(
    here: Here, three: Made, more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(here, three, *words, more=more)


def test_an_arm_is_needed(here: Here, three: Made) -> None:
    refused(here, three, "no arm is given", arms="")


# ---------------------------------------------------------------- bad input


def file_of(one: Made, side: str = "A", window: str = "w1") -> Path:
    return one.folder / side / f"{window}.safetensors"


def cut(one: Made) -> None:
    data = file_of(one).read_bytes()
    file_of(one).write_bytes(data[:-7])


def foreign(one: Made) -> None:
    file_of(one).write_bytes(b"PK\x03\x04 this is no row file, it is something else altogether")


def tensors(dtype: str = "F32", values: Any = None, positions: Any = None, **metadata: str) -> Callable[[Made], None]:
    """Another file in the place of window w1 of arm A."""

    def write(one: Made) -> None:
        window = one.windows[1]
        kept = np.arange(8) if positions is None else np.array(positions)
        rows = one.rows["A"]["w1"] if values is None else values(one.rows["A"]["w1"])
        said = {"window_id": "w1", "tokens_sha256": window["tokens_sha256"]} | metadata
        save_raw(file_of(one), {"positions": ("I32", kept.astype("<i4")), "logits": (dtype, rows)}, said)

    return write


def panel_changed(how: Callable[[dict[str, Any]], object]) -> Callable[[Made], None]:
    def write(one: Made) -> None:
        how(one.document)
        one.write_panel()

    return write


def no_rows(one: Made, side: str = "A") -> None:
    for path in (one.folder / side).iterdir():
        path.unlink()


def light(one: Made, side: str = "A") -> None:
    no_rows(one, side)
    one.write_light(side)


def two_layouts(one: Made) -> None:
    save_light(one.folder / "A" / "rows.parquet", light_columns("w0"))


def other_window_s_tokens(one: Made) -> None:
    shutil.copyfile(file_of(one, window="w2"), file_of(one))


BAD: dict[str, tuple[Callable[[Made], object], tuple[str, ...]]] = {
    "truncated": (cut, ("w1.safetensors", "window w1", "not a whole safetensors file")),
    "foreign": (foreign, ("w1.safetensors", "window w1", "not a whole safetensors file")),
    "no header": (lambda one: by_hand(file_of(one), "[]", b""), ("w1.safetensors", "window w1")),
    "empty file": (lambda one: file_of(one).write_bytes(b""), ("w1.safetensors", "window w1")),
    "float64": (tensors("F64", lambda rows: rows.astype("<f8")), ("w1.safetensors", "window w1", "F64, not F32, F16 or BF16")),
    "too wide": (tensors(values=lambda rows: np.repeat(rows, 2, axis=1)), ("A/w1.safetensors", "window w1", "rows of 22 values", "11")),
    "another window's": (other_window_s_tokens, ("w1.safetensors", "window w1", "rows of window 'w2'")),
    "other tokens'": (tensors(tokens_sha256="0" * 64), ("arm A", "w1.safetensors", "window w1", "other tokens")),
    "position twice": (tensors(positions=[0, 1, 2, 3, 4, 5, 5, 7]), ("w1.safetensors", "window w1", "position 5 stands twice")),
    "position below 0": (tensors(positions=[-1, 1, 2, 3, 4, 5, 6, 7]), ("w1.safetensors", "window w1", "position -1")),
    "row missing": (tensors(positions=[0, 1, 2, 4, 5, 6, 7, 9]), ("arm A", "w1.safetensors", "window w1", "no row at position 3")),
    "NaN": (tensors(values=lambda rows: np.where(np.arange(8)[:, None] == 6, np.nan, rows).astype("<f4")),
            ("arm A", "w1.safetensors", "window w1", "position 6 holds NaN")),
    "no folder": (lambda one: shutil.rmtree(one.folder / "A"), ("no such folder", "data/A")),
    "empty folder": (no_rows, ("data/A", "holds no rows")),
    "window missing": (lambda one: file_of(one).unlink(), ("window w1", "data/A", "no rows of it")),
    "light reference": (lambda one: light(one, "reference"), ("window w0", "light rows, full ones are needed", "rows.parquet")),
    "two layouts": (two_layouts, ("rows of several layouts", "data/A")),
    "no panel": (lambda one: one.panel.unlink(), ("panel.json", "cannot be read")),
    "panel is text": (lambda one: one.panel.write_text("{"), ("panel.json", "not JSON")),
    "panel lacks keys": (panel_changed(lambda panel: [panel["windows"][1].pop(key) for key in ("block", "roles")]),
                         ("panel.json", "window w1", "missing keys: roles, block")),
    "position too high": (panel_changed(lambda panel: panel["windows"][1]["positions"].__setitem__(-1, 8)),
                          ("panel.json", "window w1", "position 8 lies outside")),
    "no reference wanted": (panel_changed(lambda panel: panel.update(reference="none")), ()),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_gives_one_line_and_writes_nothing(here: Here, three: Made, kind: str) -> None:
    spoil, words = BAD[kind]
    spoil(three)
    if kind == "no reference wanted":
        done = here(*arguments(three), "--reference", str(three.reference), home=three.folder / "home")
        assert_one_clear_line(done, "panel.json", "has no reference: leave --reference out")
        assert not (three.folder / "out").exists()
        return
    refused(here, three, *words)


def without(name: str) -> Callable[[dict[str, list[Any]], int], None]:
    return lambda columns, _row: columns.pop(name)


def put(name: str, value: Any) -> Callable[[dict[str, list[Any]], int], None]:
    """Another value in the row at position 5 of window w1."""

    def change(columns: dict[str, list[Any]], row: int) -> None:
        columns[name][row] = value(columns[name][row]) if callable(value) else value

    return change


def all_of(name: str, how: Callable[[Any], Any]) -> Callable[[dict[str, list[Any]], int], None]:
    return lambda columns, _row: columns.update({name: [how(value) for value in columns[name]]})


def dropped(columns: dict[str, list[Any]], row: int) -> None:
    for values in columns.values():
        del values[row]


def twice(columns: dict[str, list[Any]], row: int) -> None:
    for values in columns.values():
        values.append(values[row])


BAD_LIGHT: dict[str, tuple[Callable[[dict[str, list[Any]], int], object], tuple[str, ...]]] = {
    "column missing": (without("top_log_probs"), ("L/rows.parquet", "no column top_log_probs")),
    "ids are floats": (all_of("top_ids", lambda ids: [float(one) for one in ids]), ("window w0", "top_ids are double, not integers")),
    "log-probs are text": (all_of("next_token_log_prob", str), ("window w0", "next_token_log_prob are string, not floats")),
    "positions are text": (all_of("position", str), ("window w0", "position are string, not integers")),
    "too few ids": (lambda columns, row: [all_of(name, lambda own: own[:5])(columns, row) for name in ("top_ids", "top_log_probs")],
                    ("arm L", "window w0", "light rows list 5 ids, the measures are of the top 20")),
    "lists of two lengths": (put("top_ids", lambda ids: ids[:-1]), ("window w1", "position 5 has other top_ids than 20")),
    "id outside": (put("top_ids", lambda ids: [*ids[:-1], 99]), ("arm L", "window w1", "the row at position 5 lists id 99", "33")),
    "id twice": (put("top_ids", lambda ids: [*ids[:-1], ids[0]]), ("window w1", "position 5 lists an id twice")),
    "NaN": (put("top_log_probs", lambda own: [*own[:-1], float("nan")]), ("window w1", "position 5 has NaN in top_log_probs")),
    "NaN of the next token": (put("next_token_log_prob", float("nan")), ("window w1", "position 5 has NaN in next_token_log_prob")),
    "not a log-probability": (put("top_log_probs", lambda own: [2.0, *own[1:]]), ("window w1", "position 5 has 2, above 0, in top")),
    "rising": (put("top_log_probs", lambda own: own[::-1]), ("window w1", "position 5 is not in falling probability")),
    "sums above 1": (put("top_log_probs", lambda own: [-0.1] * 20), ("arm L", "window w1", "position 5", "sum to more than 1")),
    "next token of probability 0": (put("next_token_log_prob", float("-inf")), ("arm L", "window w1", "position 5", "probability 0")),
    "next token beside its list": (put("next_token_log_prob", lambda own: own + 1e-2), ("arm L", "window w1", "5: its next token")),
    "other next token": (put("next_token", lambda own: (own + 1) % 33), ("arm L", "window w1", "position 5 predicts another token")),
    "another window's tokens": (put("tokens_sha256", "0" * 64), ("window w1", "rows of 2 token digests")),
    "other tokens": (all_of("tokens_sha256", lambda _own: "0" * 64), ("arm L", "window w0", "other tokens than the panel's")),
    "row missing": (dropped, ("arm L", "window w1", "no row at position 5; 1 of 5 rows are missing")),
    "position twice": (twice, ("window w1", "position 5 stands twice")),
    "position below 0": (put("position", -1), ("window w1", "position holds -1")),
    "window unknown": (all_of("window_id", lambda own: own.replace("w3", "w9")), ("window w3: no rows of it", "data/L")),
    "value missing": (put("next_token", None), ("window w1", "next_token: 1 values are missing")),
}  # fmt: skip


@pytest.fixture
def light_arm(tmp_path: Path) -> Made:
    one = made(tmp_path / "data", windows=4, vocab=33, sides=("reference", "A", "L"))
    for side in ("reference", "A"):
        one.write(side)
    one.write_light("L")
    return one


@pytest.mark.parametrize("kind", BAD_LIGHT)
def test_bad_light_rows_give_one_line_and_write_nothing(here: Here, light_arm: Made, kind: str) -> None:
    spoil, words = BAD_LIGHT[kind]
    columns = light_arm.light("L")
    row = columns["position"].index(5, columns["window_id"].index("w1"))
    spoil(columns, row)
    save_light(light_arm.folder / "L" / "rows.parquet", columns)
    refused(here, light_arm, *words, arms="L")


LIGHT_FILES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-9]), ("L/rows.parquet", "not a whole Parquet file")),
    "cut in the middle": (lambda path: path.write_bytes(path.read_bytes()[:200]), ("L/rows.parquet", "not a whole Parquet file")),
    "foreign": (lambda path: path.write_bytes(b"GGUF and then something else"), ("L/rows.parquet", "not a whole Parquet file")),
    "empty": (lambda path: path.write_bytes(b""), ("L/rows.parquet", "not a whole Parquet file")),
    "no rows": (lambda path: save_light(path, {name: [] for name in light_columns()}), ("L/rows.parquet",)),
    "empty folder": (lambda path: path.unlink(), ("data/L", "holds no rows")),
    "two files of one window": (lambda path: shutil.copyfile(path, path.with_name("more.parquet")), ("it has rows in",)),
    "full rows beside": (lambda path: shutil.copyfile(path.parent.parent / "A/w1.safetensors", path.with_name("w1.safetensors")),
                         ("rows of several layouts", "data/L")),
}  # fmt: skip


@pytest.mark.parametrize("kind", LIGHT_FILES)
def test_a_damaged_or_foreign_file_of_light_rows_gives_one_line(here: Here, light_arm: Made, kind: str) -> None:
    spoil, words = LIGHT_FILES[kind]
    spoil(light_arm.folder / "L" / "rows.parquet")
    refused(here, light_arm, *words, arms="L")


def test_light_and_full_arms_of_other_panels_are_refused_by_name(here: Here, light_arm: Made, tmp_path: Path) -> None:
    other = made(tmp_path / "other", windows=4, vocab=33, sides=("reference", "L"), seed=2)
    other.write_light("L")
    shutil.copyfile(other.folder / "L/rows.parquet", light_arm.folder / "L/rows.parquet")
    refused(here, light_arm, "arm L", "window w0", "other tokens than the panel's", arms="AL")


def test_a_reference_that_the_panel_needs_is_asked_for(here: Here, three: Made) -> None:
    shown = [text for text in arguments(three) if text not in ("--reference", str(three.reference))]
    assert_one_clear_line(
        here(*shown, home=three.folder / "home"), "has a full reference: give --reference", "panel.json"
    )


# ---------------------------------------------------------------- all or nothing


def test_what_stands_at_out_is_refused_before_rows_are_read_and_left_alone(here: Here, three: Made) -> None:
    file_of(three).write_bytes(b"")  # would be found if rows were read
    out = three.folder / "out"
    out.write_text("mine", encoding="utf-8")
    refused(here, three, "there is something at --out already", "data/out")
    assert out.read_text(encoding="utf-8") == "mine"
    out.unlink()
    out.mkdir()
    (out / "notes").touch()
    refused(here, three, "there is something at --out already")
    assert names(out) == {"notes"}
    refused(here, three, "results cannot be written", more=("--out", str(three.panel / "out")))


def test_an_empty_folder_and_folders_that_are_not_there_yet_may_be_out(here: Here, three: Made) -> None:
    (three.folder / "out").mkdir()
    assert score(here, three).returncode == 0
    assert "A.json" in names(three.folder / "out")
    deep = three.folder / "new" / "deeper"
    assert score(here, three, "--out", str(deep)).returncode == 0
    assert names(deep) == names(three.folder / "out")


def test_a_folder_that_was_filled_meanwhile_is_left_as_it_is(
    here: Here, three: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = command._results, three.folder / "out"

    def filled(*args: Any, **more: Any) -> dict[str, bytes]:
        out.mkdir()
        (out / "other").touch()
        return whole(*args, **more)

    monkeypatch.setattr(command, "_results", filled)
    assert_one_clear_line(score(here, three), "there is something at --out already")
    assert names(out) == {"other"}
    assert not list(three.folder.glob(".*"))


def test_a_disk_that_refuses_leaves_nothing(three: Made) -> None:
    """A real limit of the system, on a process of its own: no file may grow beyond 4 KiB."""
    before = sorted(three.folder.parent.rglob("*"))
    limited = ["/bin/sh", "-c", 'ulimit -f 8; exec "$@"', "sh"]
    done = engcmp(*arguments(three, arms="AB"), home=three.folder / "home", prefix=limited)
    assert_one_clear_line(done, "cannot write there", "data/.out.")
    assert sorted(three.folder.parent.rglob("*")) == before


@pytest.fixture
def slow(tmp_path: Path) -> Made:
    """A panel that takes many seconds, of empty (sparse) files of rows: there is time to stop it."""
    folder = tmp_path / "slow"
    folder.mkdir()
    panel = parse_panel_file(write_panel(folder, 24, 1500, 154_880).read_bytes(), where="panel.json")
    for side in ("reference", "A"):
        write_rows(folder / side, panel, "F16", None)
    return Made(folder, {"reference": "full"})


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_scoring_that_is_stopped_leaves_nothing(slow: Made, how: signal.Signals) -> None:
    before = sorted(slow.folder.rglob("*"))
    process = start_engcmp(*arguments(slow, "--jobs", "1", arms="A"), home=slow.folder / "home")
    assert process.stderr is not None
    assert "score bench: window w0" in process.stderr.readline()
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -how), said
    assert "Traceback" not in said
    assert sorted(slow.folder.rglob("*")) == before


def test_a_ctrl_c_while_files_are_written_leaves_nothing(
    here: Here, three: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = command.replace_visible

    def third(path: Path, data: bytes) -> None:
        if path.name == "tails":
            raise KeyboardInterrupt
        write(path, data)
        if path.name == "B.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "replace_visible", third)
    before = sorted(three.folder.rglob("*"))
    assert score(here, three).returncode == 130
    assert sorted(three.folder.rglob("*")) == before


_KILLED = """
import os, signal, sys
from engcmp_assets.commands import score as command
from engcmp_assets.commands.main import main
write = command.replace_visible
def killed(path, data):
    write(path, data)
    if path.name == "B.json":
        os.kill(os.getpid(), signal.SIGKILL)
command.replace_visible = killed
main(sys.argv[1:])
"""


def test_a_kill_while_files_are_written_leaves_no_results_and_the_next_run_makes_them(here: Here, three: Made) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, *arguments(three)], cwd=CHECKOUT, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not (three.folder / "out").exists()
    left = [path.name for path in three.folder.iterdir() if path.name.startswith(".out.")]
    assert len(left) == 1 and left[0].endswith(".partial")
    assert score(here, three).returncode == 0
    assert "B.json" in names(three.folder / "out")


# ---------------------------------------------------------------- tails


def planted(value: Any) -> Iterator[Any]:
    """Every copy of a document with one leaf changed, by as little as a reader would not see, or one key or entry less."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield {name: one for name, one in value.items() if name != key}
            yield from ({**value, key: other} for other in planted(item))
    elif isinstance(value, list):
        yield value[:-1]
        for number, item in enumerate(value):
            yield from ([*value[:number], other, *value[number + 1 :]] for other in planted(item))
    elif isinstance(value, str):
        yield f"{value}x"
        yield None
    else:
        yield value + 1 if isinstance(value, int) else value * (1 + 1e-9) + 1e-12
        if value == 1:
            yield True
        yield float("nan")
        yield str(value)


def test_check_agrees_with_what_was_published_and_finds_every_planted_difference(here: Here, three: Made) -> None:
    assert score(here, three).returncode == 0
    rows, published = (three.folder / "out" / name for name in ("A.rows.parquet", "tails/A.json"))
    done = here("tails", str(rows), "--check", str(published), home=three.folder)
    assert done.returncode == 0 and "agrees with" in done.stdout
    right = json.loads(published.read_bytes())
    assert here("tails", str(rows), home=three.folder).stdout == f"{json.dumps(right, indent=1)}\n"
    changed = list(planted(right))
    assert len(changed) > 300
    for other in changed:
        assert list(command._differences(other, right)), other
    for other in changed[:: len(changed) // 7]:
        published.write_text(json.dumps(other), encoding="utf-8")
        done = here("tails", str(rows), "--check", str(published), home=three.folder)
        assert done.returncode == 1 and f"FAILED {published}" in done.stdout and "Traceback" not in done.stderr


def test_tails_of_another_row_file_differ_in_its_hash(here: Here, three: Made) -> None:
    assert score(here, three).returncode == 0
    out = three.folder / "out"
    done = here("tails", str(out / "B.rows.parquet"), "--check", str(out / "tails/A.json"), home=three.folder)
    assert done.returncode == 1
    assert "row_file_sha256 is published as" in done.stdout


def test_what_is_no_row_file_is_refused(here: Here, three: Made, tmp_path: Path) -> None:
    assert_one_clear_line(here("tails", str(tmp_path / "none"), home=tmp_path), "no such file", "none")
    assert_one_clear_line(here("tails", str(tmp_path), home=tmp_path), "a folder or a device")
    (tmp_path / "text").write_text("text", encoding="utf-8")
    assert_one_clear_line(here("tails", str(tmp_path / "text"), home=tmp_path), "not a whole Parquet file", "text")
    save_light(tmp_path / "light.parquet", light_columns())
    assert_one_clear_line(here("tails", str(tmp_path / "light.parquet"), home=tmp_path), "column role is missing")
    assert score(here, three).returncode == 0
    rows = three.folder / "out/A.rows.parquet"
    table = pq.read_table(rows)
    save_light(tmp_path / "twice.parquet", table.slice(0, 3).to_pydict() | {"position": [0, 2, 0]})
    assert_one_clear_line(
        here("tails", str(tmp_path / "twice.parquet"), home=tmp_path), "window w0, row 0 stands twice"
    )
    save_light(tmp_path / "empty.parquet", table.slice(0, 2).to_pydict() | {"position": [0, None]})
    assert_one_clear_line(here("tails", str(tmp_path / "empty.parquet"), home=tmp_path), "column position has empty")
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    done = here("tails", str(rows), "--check", str(tmp_path / "bad.json"), home=tmp_path)
    assert_one_clear_line(done, "published tails is not JSON", "bad.json")


# ---------------------------------------------------------------- bar


@pytest.fixture
def generated(here: Here, tmp_path: Path) -> Made:
    """A is near the reference, B nearer still, C far away; the last rows of each window are generated."""
    one = made(
        tmp_path / "data", windows=4, sides=("reference", "A", "B", "C"), noise=1e-3,
        roles=lambda row: "generated" if row > 2 else "context",
    )  # fmt: skip
    for window in one.windows:
        one.rows["C"][window["window_id"]][3:] *= -1  # only generated rows: others must not count
        one.rows["B"][window["window_id"]][:3] *= -1
    for side in ("reference", "A", "B", "C"):
        one.write(side)
    assert score(here, one, arms="ABC").returncode == 0
    return one


def bar(here: Here, one: Made, candidate: str, baseline: str, *more: str) -> subprocess.CompletedProcess[str]:
    out = one.folder / "out"
    names = ("--candidate", str(out / f"{candidate}.rows.parquet"), "--baseline", str(out / f"{baseline}.rows.parquet"))
    return here("bar", *names, *more, home=one.folder)


def test_the_bar_exits_0_within_and_3_outside(here: Here, generated: Made) -> None:
    for candidate, baseline, code in (("A", "A", 0), ("A", "B", 0), ("B", "A", 0), ("C", "A", 3), ("A", "C", 0)):
        done = bar(here, generated, candidate, baseline)
        assert done.returncode == code, done.stdout
        assert done.stdout.startswith("Within bar" if code == 0 else "Not shown within bar")
    assert "by analogy" in bar(here, generated, "A", "B", "--across-engines").stdout
    assert "by analogy" not in bar(here, generated, "A", "B").stdout


def test_the_full_bar_wants_both_runs_inside_the_absolute_bar(here: Here, generated: Made) -> None:
    done = bar(here, generated, "A", "B", "--full")
    assert done.returncode == 0 and "Full bar, without the data set's tripwires: within bar." in done.stdout
    done = bar(here, generated, "A", "C", "--full")  # better than a baseline that is out itself
    assert done.returncode == 3
    assert "the baseline's absolute bar: top-1" in done.stdout and "candidate's" not in done.stdout
    done = bar(here, generated, "C", "A", "--full")
    assert (
        done.returncode == 3 and "the candidate's absolute bar" in done.stdout and "not shown within bar" in done.stdout
    )


def test_one_window_is_never_shown_within_the_bar(here: Here, tmp_path: Path) -> None:
    one = made(tmp_path / "data", windows=1, noise=1e-3, roles=lambda row: "generated")
    for side in ("reference", "A", "B"):
        one.write(side)
    assert score(here, one).returncode == 0
    done = bar(here, one, "A", "B", "--full")
    assert done.returncode == 3 and "1 window" in done.stdout and "one window, two or more are wanted" in done.stdout


def test_the_order_of_a_row_file_does_not_matter_to_bar_and_tails(here: Here, generated: Made) -> None:
    before = bar(here, generated, "C", "A").stdout
    path = generated.folder / "out/C.rows.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take(list(np.random.default_rng(3).permutation(table.num_rows))), path)
    assert bar(here, generated, "C", "A").stdout == before


def test_the_bar_refuses_files_of_other_rows(here: Here, generated: Made, tmp_path: Path) -> None:
    path = generated.folder / "out/A.rows.parquet"
    table = pq.read_table(path).to_pydict()
    kept = dict(table)
    for column, value, words in (
        ("next_token", [99, *kept["next_token"][1:]], ("differ in next_token", "window w0, row 0")),
        ("position", [1, *kept["position"][1:]], ("differ in position", "window w0, row 1 and window w0, row 0")),
        ("role", ["generated", *kept["role"][1:]], ("differ in role", "window w0, row 0")),
    ):
        save_light(path, kept | {column: value})
        assert_one_clear_line(bar(here, generated, "A", "B"), *words)
    save_light(path, {name: values[:-1] for name, values in kept.items()})
    assert_one_clear_line(bar(here, generated, "A", "B"), "19 and 20 rows")


def test_the_bar_needs_generated_rows_and_a_reference(here: Here, three: Made, tmp_path: Path) -> None:
    assert score(here, three).returncode == 0
    assert_one_clear_line(bar(here, three, "A", "B"), "no generated row")
    one = made(tmp_path / "none", reference="none", roles=lambda row: "generated")
    one.write("A")
    one.write("B")
    assert score(here, one).returncode == 0
    assert_one_clear_line(bar(here, one, "A", "B"), "no KL from a reference", "A.rows.parquet")


@pytest.mark.parametrize("name", ["score", "tails", "bar"])
def test_help_has_an_example(here: Here, tmp_path: Path, name: str) -> None:
    done = here(name, "--help", home=tmp_path)
    assert done.returncode == 0
    assert f"Example: engcmp {name}" in done.stdout
