"""A second demo, a second measurement, and engines that cannot be compared: what a user sees of each."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cut import ANALYSIS, CAPTURED, PANELS, SPEED, A, copy_of, engines_after, row_files
from homes import ARMS, CHECKOUT, STUDY, assert_one_clear_line, current_receipt, engcmp, everything, head_file, verified

from engcmp_assets.kernel.study import load_study
from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.package_index import platform_key
from engcmp_resources.store import Store


@pytest.fixture
def home(measured_home: Path, tmp_path: Path) -> Path:
    return copy_of(measured_home, tmp_path / "home")


def test_a_second_demo_answers_everything_from_the_store_and_says_so(
    measured_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipts = everything(measured_home / "receipts")
    started = time.monotonic()
    done = engcmp("demo", home=measured_home)
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stderr
    # Each arm's run begins with the frozen protocol; the three results of the whole study are made once.
    answered = len(ARMS) * (1 + 3 + len(CAPTURED) + len(SPEED) + len(ANALYSIS)) + 3
    assert f" 0 artifacts made, {answered} answered from the store, in " in done.stderr, done.stderr
    assert everything(measured_home / "receipts") == receipts
    with capsys.disabled():
        print(f"\n[a second demo takes {seconds:.1f} s; on a quiet machine it must be under 20]")


@pytest.mark.timeout(600)
def test_measuring_again_adds_receipts_and_overwrites_nothing(home: Path) -> None:
    before = {name: entry for name, entry in everything(home).items() if name.startswith(("receipts/", "store/"))}
    heads = {artifact: head_file(home, artifact, A).read_bytes() for artifact in CAPTURED}
    rows = row_files(home, A)
    done = engcmp("run", STUDY, "--arm", A, "--remeasure", home=home)
    assert done.returncode == 0, done.stderr
    after = everything(home)
    files = {name for name in before if not Path(home / name).is_dir()}
    assert {name: after.get(name) for name in files} == {name: before[name] for name in files}
    for artifact in CAPTURED:
        assert current_receipt(home, artifact, A)["measurement"] == 2, artifact
        assert head_file(home, artifact, A).read_bytes() != heads[artifact]
    assert row_files(home, A) == rows, "this engine gives the same rows every time"
    assert list((home / "scratch").glob("capture-*")) == []
    assert verified(home).problems == ()


@pytest.fixture
def protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study's folder, to be edited and frozen anew."""
    shutil.copytree(CHECKOUT / "protocol", tmp_path / "protocol")
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tmp_path / "protocol"))
    return tmp_path / "protocol" / STUDY


def edit(path: Path, changes: Mapping[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def current(home: Path, artifact: str) -> dict[str, Any]:
    return json.loads(head_file(home, artifact, A).read_bytes())


@pytest.mark.skipif(sys.platform != "linux", reason="looks for leftover processes in /proc")
def test_an_engine_that_resolves_a_setting_otherwise_is_one_clear_line(home: Path, protocol: Path) -> None:
    """llama.cpp rounds a context of 500 tokens up to 512: it is not what was asked for, so nothing is measured."""
    edit(protocol / "protocol.toml", {"context_tokens = 512": "context_tokens = 500"})
    assert engcmp("amend", STUDY, "--because", "a test", home=home).returncode == 0
    heads = {artifact: current(home, artifact) for artifact in CAPTURED}
    done = engcmp("run", STUDY, "--arm", A, home=home)
    assert_one_clear_line(done, "500", "512")
    assert engines_after(3) == []
    assert {artifact: current(home, artifact) for artifact in CAPTURED} == heads


@pytest.mark.skipif(sys.platform != "linux", reason="looks for leftover processes in /proc")
def test_a_wheel_without_the_engine_s_functions_is_one_clear_line(home: Path, protocol: Path) -> None:
    """A library that loads, and has none of the functions; it is taken by its pin from the store as a fetched one would be."""
    library = next(Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("_heapq.*.so"))
    Store(home).put_bytes(library.read_bytes(), "so")
    pinned = load_study(STUDY).protocol.sources[f"llamacpp-{A.partition('@')[2]}"].wheels[platform_key()].member_sha256
    edit(protocol / "protocol.toml", {pinned: sha256_bytes(library.read_bytes())})
    assert engcmp("amend", STUDY, "--because", "a test", home=home).returncode == 0
    done = engcmp("run", STUDY, "--arm", A, home=home)
    assert_one_clear_line(done, "llama")
    assert engines_after(3) == []
    assert set(PANELS) == {"pa", "pb", "pd"}
