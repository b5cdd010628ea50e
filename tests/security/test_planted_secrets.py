"""Ten secrets are planted where users have them; then all that commands wrote, said and showed in process lists is searched for them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from homes import CHECKOUT, command, engcmp_here
from ports import free_port
from served_tables import MODEL, VOCAB, freeze
from speedy import served_base
from tiny import TINY, TinyStudy

from tests.simulator.running import running_simulator

PLANTED = {
    "ENGINE_KEY": "Zq7mEngineKeyOfTheServer00001",
    "HF_TOKEN": "hf_Zq7mHubTokenOfTheUser000000002",
    "OPENAI_API_KEY": "sk-Zq7mOpenKeyOfTheUser0000000003",
    "LLAMA_API_KEY": "Zq7mLlamaKeyOfTheUser00000004",
    "GITHUB_TOKEN": "ghp_Zq7mGitTokenOfTheUser00000000000005",
    "AWS_SECRET_ACCESS_KEY": "Zq7mBucketKeyOfTheUser0000006",
    "PGPASSWORD": "Zq7mDatabasePassword000000007",
    "HTTPS_PROXY": "http://user:Zq7mProxyPassword000000008@127.0.0.1:9",
    "SIGNING_PASSPHRASE": "Zq7mSigningPassphrase00000009",
    "WANDB_API_KEY": "Zq7mTrackerKeyOfTheUser000010",
}
MARK = "Zq7m"  # in each of them and nowhere else


@dataclass(frozen=True)
class Kept:
    """A study that was run, verified, audited and exported: its folder, what the commands said, and the command lines there were."""

    tiny: TinyStudy
    out: Path
    said: Mapping[str, str]
    command_lines: frozenset[str]

    def files(self) -> Iterator[Path]:
        for root in (self.tiny.root, self.out):
            yield from (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


class _Watch(threading.Thread):
    """Reads the command line of every process of this machine again and again: arguments are for all to see, environments are not."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    self.found.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))


@pytest.fixture(scope="module")
def kept(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    root, beside = tmp_path_factory.mktemp("planted"), tmp_path_factory.mktemp("beside")
    port, key = free_port(), beside / "key"
    key.write_text(f"{PLANTED['ENGINE_KEY']}\n", encoding="utf-8")
    tiny = served_base(root, measured_home, port)
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace('model = "sim/model"\n', 'model = "sim/model"\napi_key_env = "ENGINE_KEY"\n', 1), "utf-8"
    )
    freeze(tiny)
    prompts = json.loads((tiny.folder / "prompt_set.json").read_bytes())
    known = {
        (tiny.folder / "texts" / f"{one['window_id']}.txt").read_text(encoding="utf-8"): one["tokens"]
        for one in prompts["windows"]
    }
    (beside / "known.json").write_text(json.dumps(known), encoding="utf-8")
    asked = {"request_id": "r", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 3, "seed": 1}
    cell = {"cell_id": "c", "kind": "code", "concurrency": 1, "requests": [asked]}
    plan = {"model": MODEL, "sampling": {"temperature": 0}, "cells": [cell]}
    (beside / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    watch, said = _Watch(), {}
    with ExitStack() as stack:
        stack.callback(watch.join, 10)
        stack.callback(watch.over.set)
        # The engine's own words of a failure hold the key, as those of careless servers do; the first request of a cell meets them.
        echo = {
            "name": "http_error",
            "status": 500,
            "message": f"bad key {PLANTED['ENGINE_KEY']}",
            "at": {"path": "/tokenize"},
            "times": 1,
        }
        stack.enter_context(
            running_simulator(
                "vllm",
                faults=[echo],
                port=port,
                model=MODEL,
                vocab=VOCAB,
                known_texts=beside / "known.json",
                api_key_file=key,
            )
        )
        watch.start()
        calls = {
            "run with a wrong key": (("run", TINY), {"ENGINE_KEY": f"{MARK}AnotherKeyThatIsWrong"}),
            "run once": (("run", TINY), {}),
            "run again": (("run", TINY), {}),
            "verify": (("verify", TINY), {}),
            "audit": (("audit", TINY), {}),
            "throughput": (
                (
                    "throughput",
                    "--base-url",
                    f"http://127.0.0.1:{port}",
                    "--plan",
                    str(beside / "plan.json"),
                    "--key-env",
                    "ENGINE_KEY",
                    "--out",
                    str(beside / "out" / "speed"),
                    "--no-calibrate",
                    "--warmup",
                    "0",
                ),
                {},
            ),
            "export": (("export", TINY, "--out", str(beside / "out" / "bundle")), {}),
        }
        for name, (arguments, other) in calls.items():
            variables = PLANTED | tiny.variables | {"ENGCMP_HOME": str(tiny.home)} | other
            if name == "run again":  # whose process others can see; the rest is quicker in this one
                done = subprocess.run(
                    command(*arguments), env=os.environ | variables, cwd=CHECKOUT, capture_output=True, text=True,
                    check=False, timeout=300,
                )  # fmt: skip
            else:
                done = engcmp_here(*arguments, **variables)
            said[name] = f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    yield Kept(tiny, beside / "out", said, frozenset(watch.found))


def everything(path: Path) -> Iterator[str]:
    """The text of a file, as its readers see it: unpacked where it is packed."""
    data = path.read_bytes()
    yield data.decode("latin-1")
    if path.suffix == ".parquet":
        table = pl.read_parquet(path)
        yield from (str(table[name].to_list()) for name in table.columns if table[name].dtype in (pl.String, pl.Binary))
    elif data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data).decode("latin-1")


def test_the_study_was_measured_with_the_key(kept: Kept) -> None:
    assert kept.said["run again"].startswith("exit 0"), kept.said["run again"][-2000:]
    for name in ("verify", "throughput", "export"):
        assert kept.said[name].startswith("exit 0"), kept.said[name][-2000:]
    heads = {path.stem for path in kept.tiny.home.glob(f"heads/{TINY}/*/*.json")}
    assert {"summaries", "publication"} <= heads


def test_a_wrong_key_is_refused_without_being_shown(kept: Kept) -> None:
    assert kept.said["run with a wrong key"].startswith("exit 1")
    assert "401" in kept.said["run with a wrong key"]


def test_no_file_that_was_written_holds_a_secret(kept: Kept) -> None:
    looked, found = 0, []
    for path in kept.files():
        looked += 1
        found += [str(path) for text in everything(path) if MARK in text]
    assert looked > 100 and found == []


def test_no_word_that_was_said_is_a_secret(kept: Kept) -> None:
    assert {name for name, text in kept.said.items() if MARK in text} == set()


def test_no_process_list_shows_a_secret(kept: Kept) -> None:
    assert any("engcmp_assets.commands run" in line for line in kept.command_lines)
    assert [line for line in kept.command_lines if MARK in line] == []


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    pl.DataFrame({"note": [f"{MARK}x"]}).write_parquet(tmp_path / "a.parquet", compression="zstd")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(f"{MARK}x".encode()))
    for name in ("a.parquet", "b.json.gz"):
        assert any(MARK in text for text in everything(tmp_path / name)), name
    began = time.monotonic()
    watch = _Watch()
    watch.start()
    with subprocess.Popen(["sleep", "65.1234"]) as process:
        while not any("65.1234" in line for line in watch.found) and time.monotonic() - began < 60:
            time.sleep(0.05)
        process.kill()
    watch.over.set()
    assert any("65.1234" in line for line in watch.found)
