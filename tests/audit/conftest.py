"""The audit's own measured home: the study with two of its arms, four short texts and few rows, so that verifying takes a second.

It bears the study's name, lies beside a protocol folder of its own, and is measured for real like the large one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from homes import CHECKOUT, Q4, Q8, STUDY, Here, engcmp_here
from once import made_once

from engcmp_assets.kernel.study import Study, load_study

TEXTS = ("chat-1", "code-1", "json-1", "prose-1")
PAIRS = ("q4_0-vs-q8_0", "decode-vs-prefill-q4_0")
FEWER_ROWS = {
    "rows_per_window = 32": "rows_per_window = 6",
    "rows_per_window = 128": "rows_per_window = 12",
    "rows_per_window = 8\n": "rows_per_window = 2\n",
    "replicates = 20000": "replicates = 200",
    'kinds = ["code", "prose"]': 'kinds = ["code"]',
    "prompt_tokens = [64, 256]": "prompt_tokens = [64]",
    "repeats = 3\n": "repeats = 1\n",  # of a prompt whose start may be cached
}


def write_small_protocol(root: Path) -> None:
    source, folder = CHECKOUT / "protocol" / STUDY, root / STUDY
    (folder / "texts").mkdir(parents=True)
    for name in TEXTS:
        text = (source / "texts" / f"{name}.txt").read_text(encoding="utf-8")
        (folder / "texts" / f"{name}.txt").write_text(text[:200], encoding="utf-8")
    text = (source / "protocol.toml").read_text(encoding="utf-8")
    for old, new in FEWER_ROWS.items():
        assert old in text, old
        text = text.replace(old, new)
    arms = re.compile(r'\[\[arms\]\]\narm = "([^"]*)"\n')
    text = arms.sub(lambda found: found[0] if found[1] in (Q4, Q8) else "", text)
    pairs = re.compile(r"\[\[comparisons\]\]\npair_id = \"([^\"]*)\"\n(?:[^\n\[]+\n)+")
    text = pairs.sub(lambda found: found[0] if found[1] in PAIRS else "", text)
    (folder / "protocol.toml").write_text(text, encoding="utf-8")


@pytest.fixture(scope="session")
def protocol_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small study, in the place of the checkout's `protocol`. Read it; change only copies."""
    return made_once(tmp_path_factory, "small", lambda folder: write_small_protocol(folder / "protocol")) / "protocol"


@pytest.fixture(scope="session")
def measured_home(measured_home: Path, protocol_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small study, measured; what it fetches is taken from the large one's store. Read it; change only copies."""
    return made_once(tmp_path_factory, "small-home", lambda home: _measure_small(home, measured_home, protocol_root))


def _measure_small(home: Path, measured_home: Path, protocol_root: Path) -> None:
    receipt = json.loads((measured_home / "heads" / STUDY / Q4.replace("/", "~") / "sources.json").read_bytes())
    for output in json.loads((measured_home / "receipts" / f"{receipt['receipt_sha256']}.json").read_bytes())[
        "outputs"
    ]:
        if output["suffix"] in ("gguf", "so", "dylib"):
            name = f"{output['sha256'][:2]}/{output['sha256']}.{output['suffix']}"
            (home / "store" / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(measured_home / "store" / name, home / "store" / name)
    for arguments in (["freeze", STUDY], ["run", STUDY]):
        done = engcmp_here(*arguments, ENGCMP_HOME=str(home), ENGCMP_PROTOCOL=str(protocol_root))
        assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def _small_study(protocol_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(protocol_root))


@pytest.fixture(scope="session")
def study(protocol_root: Path, measured_home: Path) -> Study:
    assert measured_home.is_dir()  # it is frozen when it was measured
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGCMP_PROTOCOL", str(protocol_root))
        return load_study(STUDY)


@pytest.fixture
def protocol_copy(protocol_root: Path, measured_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small study's frozen folder, to be changed."""
    assert measured_home.is_dir()
    shutil.copytree(protocol_root, tmp_path / "protocol")
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tmp_path / "protocol"))
    return tmp_path / "protocol" / STUDY


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)
