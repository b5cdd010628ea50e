"""`engcmp prompts`: the whole prompt set, built without a network, the same bytes each time, and only where it is the frozen one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from homes import CHECKOUT, STUDY, assert_one_clear_line, engcmp, engcmp_here

from engcmp_assets.commands import prompts
from engcmp_assets.commands.prompts import apart
from engcmp_assets.kernel.records import tokens_sha256
from engcmp_assets.kernel.study import Study
from engcmp_assets.prompt_set.building import MANIFEST, built_files, control_tokens, refuse_other_files
from engcmp_resources.errors import EngcmpError

bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap to build apart from the network with"
)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@bubblewrap
def test_two_builds_give_the_same_bytes_and_what_was_frozen(measured_home: Path, tmp_path: Path, study: Study) -> None:
    done = engcmp("prompts", STUDY, "--out", str(tmp_path / "one"), home=measured_home)
    assert done.returncode == 0, done.stderr
    other = os.environ.get("ENGCMP_OTHER_PYTHON")  # another version of Python with the same packages
    again = ["--python", other] if other else []
    assert engcmp("prompts", STUDY, "--out", str(tmp_path / "two"), *again, home=measured_home).returncode == 0
    files = files_of(tmp_path / "one")
    assert files_of(tmp_path / "two") == files
    for name in ("prompt_set.json", "throughput_plan.json"):
        assert files[name] == study.files[name]
    refuse_other_files(files, json.loads(files[MANIFEST]))
    with pytest.raises(EngcmpError, match=r"REVIEW\.json is not as MANIFEST\.json says"):
        refuse_other_files(files | {"REVIEW.json": b"{}"}, json.loads(files[MANIFEST]))

    planned = {
        one["request_id"]: (cell["prompt_tokens"], one["tokens_sha256"])
        for cell in json.loads(files["throughput_plan.json"])["cells"]
        for one in (*cell["warmup"], *cell["requests"])
    }
    rows = json.loads(files["throughput/prompts.json"])
    assert {one["request_id"]: (len(one["tokens"]), tokens_sha256(one["tokens"])) for one in rows} == planned
    review = json.loads(files["REVIEW.json"])
    assert review["control_tokens"]["texts/chat-1.txt"] == ["<|im_start|>", "<|im_end|>"]
    assert review["prompt_tokens"] == {"llamacpp": {"speed": 64 * len(planned), "windows": 2123}}
    assert review["self_tests"]["math"] == "passed" and review["not_made_here"] == {}


@bubblewrap
def test_the_builder_has_no_network_and_can_write_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    script = f"cat /proc/net/dev; touch {tmp_path}/in/x; touch {tmp_path}/out && echo written"
    done = subprocess.run([*apart(tmp_path / "in"), "sh", "-c", script], capture_output=True, text=True, check=False)
    names = {line.partition(":")[0].strip() for line in done.stdout.splitlines() if ":" in line}
    assert names == {"lo"} and (tmp_path / "in" / "x").exists()
    assert "written" not in done.stdout and not (tmp_path / "out").exists()


def test_a_process_with_a_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces = tmp_path / "dev"
    monkeypatch.setattr(prompts, "_INTERFACES", interfaces)
    interfaces.write_text("Inter-| Receive\n face |bytes\n    lo: 0 0\n")
    prompts._refuse_network()
    interfaces.write_text("Inter-| Receive\n face |bytes\n    lo: 0 0\n  eth0: 0 0\n")
    with pytest.raises(EngcmpError, match=r"this process has a network \(eth0\)"):
        prompts._refuse_network()


@bubblewrap
def test_a_prompt_set_that_is_not_the_frozen_one_is_not_built(
    measured_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "protocol" / STUDY
    shutil.copytree(CHECKOUT / "protocol" / STUDY, folder)
    with (folder / "texts" / "code-1.txt").open("a", encoding="utf-8") as file:
        file.write("# one more line\n")
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(folder.parent))
    done = engcmp_here("prompts", STUDY, "--out", str(tmp_path / "out"), ENGCMP_HOME=str(measured_home))
    assert_one_clear_line(done, "prompt_set.json comes out as another file than the frozen one")
    assert not list((tmp_path / "out").iterdir())


def test_a_prompt_of_another_length_than_planned_is_refused(study: Study) -> None:
    with pytest.raises(EngcmpError, match="prompt a/1 has 3 tokens, 4 are planned"):
        built_files(study.base, frozen={}, panels=[], texts={}, prompts=[("a/1", 4, [1, 2, 3])])


def test_what_is_not_made_here_is_said(study: Study) -> None:
    files = built_files(study.base, frozen={}, panels=[study.panel("pa")], texts={}, prompts=[])
    assert set(json.loads(files["REVIEW.json"])["not_made_here"]) == {"pb", "pd"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain text, a < b | c > d", []),
        ("<|user|> and <|user|> <think>", ["<|user|>", "<think>"]),
        ("[gMASK]<sop>", ["[gMASK]", "<sop>"]),
        ("a\x00b\tc\n", ["\\x00"]),
    ],
)
def test_control_tokens_in_a_text_are_named(text: str, found: list[str]) -> None:
    assert control_tokens(text) == found
