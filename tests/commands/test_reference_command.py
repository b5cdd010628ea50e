"""`engcmp reference`: rows for anybody's token ids, in the study's own bits, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from homes import (
    CHECKOUT,
    EVERY_ARM,
    Q4,
    STUDY,
    Here,
    assert_one_clear_line,
    current_receipt,
    engcmp,
    output_file,
    start_engcmp,
)
from safetensors import safe_open

from engcmp_assets.commands.reference import read_windows
from engcmp_assets.kernel.records import tokens_sha256
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_files import read_rows

VOCAB = 49152
PROMPTS = json.loads((CHECKOUT / "protocol" / STUDY / "prompt_set.json").read_bytes())
WINDOWS = {w["window_id"]: w for w in PROMPTS["windows"]}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


def tokens_file(folder: Path, document: Any) -> Path:
    path = folder / "tokens.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def entry(name: str, tokens: list[int]) -> dict[str, Any]:
    return {"window_id": name, "tokens": tokens}


# ---------------------------------------------------------------- what comes out


def test_rows_are_the_study_s_own_at_the_panel_s_positions_and_the_library_reads_them(
    measured_home: Path, tmp_path: Path
) -> None:
    chosen = {name: WINDOWS[name] for name in ("chat-2", "json-3")}
    document = {"panel": "pa", "windows": list(chosen.values()), "more": "is allowed"}
    done = engcmp(
        "reference", STUDY, "--tokens", str(tokens_file(tmp_path, document)), "--out", str(tmp_path / "new" / "rows"),
        home=measured_home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = sum(len(window["tokens"]) - 1 for window in chosen.values())
    assert done.stdout == f"2 windows, {rows} rows in {tmp_path}/new/rows\n"
    assert f"{rows}/{rows} steps" in done.stderr
    assert sorted(path.name for path in (tmp_path / "new" / "rows").iterdir()) == [
        "chat-2.safetensors",
        "json-3.safetensors",
    ]
    receipt = current_receipt(measured_home, "reference_rows", Q4)
    for name, window in chosen.items():
        with safe_open(str(tmp_path / "new" / "rows" / f"{name}.safetensors"), framework="numpy") as file:
            positions, logits = file.get_tensor("positions"), file.get_tensor("logits")
            assert file.metadata() == {"window_id": name, "tokens_sha256": window["tokens_sha256"]}
        assert positions.dtype == np.int32
        assert positions.tolist() == list(range(len(window["tokens"]) - 1))
        assert (logits.dtype, logits.shape) == (np.float32, (len(positions), VOCAB))
        kept = PROMPTS["panels"]["pa"][name]["positions"]
        stored = read_rows(
            output_file(measured_home, receipt, f"rows/pa/{name}"), window_id=name, tokens_sha256=window["tokens_sha256"],
            positions=kept, vocab=VOCAB,
        )  # fmt: skip
        if EVERY_ARM:
            assert logits[kept].tobytes() == stored.logits.tobytes()
        else:  # without AVX-512 a row is rounded by its place in a product: see test_reference_engine
            np.testing.assert_allclose(logits[kept], stored.logits, rtol=0, atol=2e-4)


def test_a_window_longer_than_the_engine_s_context_and_one_of_two_tokens(
    measured_home: Path, tmp_path: Path, here: Here
) -> None:
    long = (WINDOWS["prose-1"]["tokens"] * 4)[:600]
    lines = "\n".join(json.dumps(entry(name, ids)) for name, ids in (("long", long), ("short", [1, 2])))
    path = tokens_file(tmp_path, lines)
    done = here("reference", STUDY, "--tokens", str(path), "--out", str(tmp_path / "rows"), home=measured_home)
    assert done.returncode == 0, done.stderr
    for name, ids in (("long", long), ("short", [1, 2])):
        found = read_rows(
            tmp_path / "rows" / f"{name}.safetensors", window_id=name, tokens_sha256=tokens_sha256(ids),
            positions=range(len(ids) - 1), vocab=VOCAB,
        )  # fmt: skip
        assert np.isfinite(found.logits).all()


def test_ctrl_c_leaves_no_half_file_and_what_was_complete(measured_home: Path, tmp_path: Path) -> None:
    tokens = WINDOWS["prose-2"]["tokens"][:70]
    windows = [entry(f"w{number}", tokens) for number in range(10)]
    out = tmp_path / "rows"
    out.mkdir()
    os.mkfifo(out / ".w5.partial")  # whoever opens it to write the sixth window waits for a reader
    process = start_engcmp(
        "reference", STUDY, "--tokens", str(tokens_file(tmp_path, windows)), "--out", str(out), home=measured_home
    )
    until = time.monotonic() + 120
    while time.monotonic() < until and not (out / "w4.safetensors").exists() and process.poll() is None:
        time.sleep(0.02)
    assert (out / "w4.safetensors").exists(), "it never got so far"
    waits = Path(
        f"/proc/{process.pid}/wchan"
    )  # what the process sleeps in: then it is within the writing of the sixth window
    while time.monotonic() < until and waits.exists() and waits.read_text() != "wait_for_partner":
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert errors.endswith("engcmp: stopped; what is complete is kept, start again to continue\n")
    assert {path.name for path in out.iterdir()} == {f"w{number}.safetensors" for number in range(5)}
    for path in out.iterdir():
        read_rows(path, window_id=path.stem, tokens_sha256=tokens_sha256(tokens), positions=range(69), vocab=VOCAB)


# ---------------------------------------------------------------- what goes in


@pytest.mark.parametrize(
    "document",
    [
        entry("a", [1, 2, 3]),
        [entry("a", [1, 2, 3])],
        {"windows": [entry("a", [1, 2, 3]) | {"block": "prose"}], "vocab": 7},
        json.dumps(entry("a", [1, 2, 3])) + "\n\n",
        "\ufeff" + json.dumps(entry("a", [1, 2, 3])),
    ],
    ids=["one object", "a list", "a panel", "a line", "a byte order mark"],
)
def test_each_shape_of_input_gives_the_same_windows(tmp_path: Path, document: Any) -> None:
    assert read_windows(tokens_file(tmp_path, document)) == {"a": [1, 2, 3]}


def test_one_object_a_line_gives_them_in_order(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(entry(name, [1, 2])) for name in ("b", "a", "c"))
    assert list(read_windows(tokens_file(tmp_path, text))) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "no window in the file"),
        ([], "no window in the file"),
        ({"windows": []}, "no window in the file"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (json.dumps(entry("a", [1, 2])) + "\n{", "not JSON"),
        ("7", "entry 1); add what is missing"),
        ("null", 'an entry needs "window_id" and "tokens"'),
        ([entry("a", [1, 2]), {"window_id": "b"}], 'an entry needs "window_id" and "tokens" ('),
        ([entry("a", [1, 2]), entry("a", [3, 4])], "window a stands twice"),
        (entry("../a", [1, 2]), "window_id '../a' cannot be a file name"),
        (entry(".a", [1, 2]), "window_id '.a' cannot be a file name"),
        (entry("", [1, 2]), "window_id '' cannot be a file name"),
        (entry("x" * 300, [1, 2]), "cannot be a file name"),
        ({"window_id": 7, "tokens": [1, 2]}, "window_id '7' cannot be a file name"),
        (entry("a", [1]), "window a: tokens must be a list of at least 2 integers"),
        ({"window_id": "a", "tokens": "1 2"}, "window a: tokens must be a list"),
        ({"window_id": "a", "tokens": [1, 2.0]}, "window a: tokens must be a list"),
        ({"window_id": "a", "tokens": [1, True]}, "window a: tokens must be a list"),
        ({"window_id": "a", "tokens": [1, None]}, "window a: tokens must be a list"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_the_entry_and_what_is_wrong(tmp_path: Path, document: Any, words: str) -> None:
    path = tokens_file(tmp_path, document)
    with pytest.raises(EngcmpError) as caught:
        read_windows(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(EngcmpError, match="tokens file cannot be read"):
            read_windows(path)
    (tmp_path / "latin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EngcmpError, match="tokens file cannot be read"):
        read_windows(tmp_path / "latin")


def test_a_token_outside_the_vocabulary_is_named_with_its_window(
    measured_home: Path, tmp_path: Path, here: Here
) -> None:
    for token in (VOCAB, -1, 10**30):
        path = tokens_file(tmp_path, [entry("good", [1, 2]), entry("bad", [5, token])])
        done = here("reference", STUDY, "--tokens", str(path), "--out", str(tmp_path / "rows"), home=measured_home)
        assert_one_clear_line(done, f"token {token}", "window bad")
        assert list((tmp_path / "rows").iterdir()) == []


@pytest.mark.parametrize("place", ["a file", "below a file", "no room for the name"])
def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    measured_home: Path, tmp_path: Path, place: str, here: Here
) -> None:
    (tmp_path / "file").write_text("in the way")
    out = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "rows"}.get(place, tmp_path / ("x" * 300))
    path = tokens_file(tmp_path, entry("a", [1, 2]))
    done = here("reference", STUDY, "--tokens", str(path), "--out", str(out), home=measured_home)
    assert_one_clear_line(done, "cannot write there: ", str(out), "name another one")
    assert "steps" not in done.stderr
    assert (tmp_path / "file").read_text() == "in the way"


def test_rows_that_would_not_fit_on_the_disk_are_refused_before_the_work(
    measured_home: Path, tmp_path: Path, here: Here
) -> None:
    windows = [entry(f"w{number}", [1] * 8000) for number in range(1000)]
    path = tokens_file(tmp_path, windows)
    done = here("reference", STUDY, "--tokens", str(path), "--out", str(tmp_path / "rows"), home=measured_home)
    assert_one_clear_line(done, "writing the rows needs 1,572,667 MB and the disk has", str(tmp_path / "rows"))
    assert "steps" not in done.stderr
