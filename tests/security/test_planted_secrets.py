"""Ten secrets are planted where users have them; then all that commands wrote, said and showed in process lists is searched for them."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import sqlite3
import subprocess
import tarfile
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
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


_EMBEDDED = re.compile(rb";base64,([A-Za-z0-9+/]+=*)")


def everything(path: Path) -> Iterator[str]:
    """The text of a file, as its readers see it: unpacked where it is packed, however deep."""
    data = path.read_bytes()
    yield from readings(data)
    if data.startswith(b"SQLite format 3\0"):  # Dagster keeps a part of what it knows compressed
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in tables:
                for cell in chain.from_iterable(database.execute(f'SELECT * FROM "{name}"')):  # noqa: S608 - its own table
                    if isinstance(cell, bytes):
                        yield from readings(cell)


def readings(data: bytes) -> Iterator[str]:
    """The bytes as text, and those of every packed thing in them: known by what they begin with, whatever the file's name is."""
    yield data.decode("latin-1")
    for inner in _unpacked(data):
        yield from readings(inner)


def _unpacked(data: bytes) -> Iterator[bytes]:
    if data[:4] == b"PAR1":
        for column in pl.read_parquet(io.BytesIO(data)).iter_columns():
            if not column.dtype.is_numeric():
                yield "\n".join(map(str, column.to_list())).encode()
        notes = pl.read_parquet_metadata(io.BytesIO(data))
        yield _of_base64(notes.get("ARROW:schema", "").encode())  # with what is noted of each column
    elif data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        yield pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    elif data[:2] in (b"\x78\x01", b"\x78\x9c", b"\x78\xda"):
        with suppress(zlib.error):  # text may begin so
            yield zlib.decompress(data)
    elif data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from (archive.read(one) for one in archive.infolist())
    elif data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            yield from (found.read() for one in archive if (found := archive.extractfile(one)) is not None)
    elif data[:8] == b"\x89PNG\r\n\x1a\n":
        yield from _texts_of_png(data)
    yield from map(_of_base64, _EMBEDDED.findall(data))


def _of_base64(text: bytes) -> bytes:
    """What stands in base64, padded or not; a lone last letter, which can hold no byte, is left out."""
    letters = text.rstrip(b"=")
    return base64.b64decode(letters[: len(letters) - (len(letters) % 4 == 1)] + b"===")


def _texts_of_png(data: bytes) -> Iterator[bytes]:
    """The compressed text chunks: zTXt (keyword, 0, method, text) and iTXt (keyword, 0, flag, method, language, 0, keyword, 0, text)."""
    at = 8
    while at + 8 <= len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        _, _, rest = data[at + 8 : at + 8 + size].partition(b"\0")
        if kind == b"zTXt":
            yield zlib.decompress(rest[1:])
        elif kind == b"iTXt" and rest[:1] == b"\1":
            yield zlib.decompress(rest[2:].split(b"\0", 2)[2])
        at += size + 12


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


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def _planted_files(secret: bytes) -> dict[str, bytes]:
    """The secret in each kind of packed file, none of which shows it unread."""
    table, member, archive = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pl.DataFrame({"note": [secret.decode()]}).write_parquet(table, compression="zstd")
    listed = pl.DataFrame({"one": [{"notes": [secret.decode()]}]})
    nested = io.BytesIO()
    listed.write_parquet(nested, compression="gzip")
    noted = io.BytesIO()
    schema = pa.schema([pa.field("n", pa.int64(), metadata={"note": secret})])
    pq.write_table(pa.table({"n": [1]}, schema=schema), noted)
    with zipfile.ZipFile(member, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.json", secret)
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        entry = tarfile.TarInfo("a.txt")
        entry.size = len(secret)
        packed.addfile(entry, io.BytesIO(secret))
    png, packed_text = b"\x89PNG\r\n\x1a\n", zlib.compress(secret)
    ztxt = _chunk(b"zTXt", b"Comment\0\0" + packed_text)
    return {
        "text column of Parquet": table.getvalue(),
        "nested column of Parquet": nested.getvalue(),
        "notes on a column of Parquet": noted.getvalue(),
        "gzip": gzip.compress(secret),
        "zstd": pa.compress(secret, codec="zstd", asbytes=True),
        "zstd in gzip": gzip.compress(pa.compress(secret, codec="zstd", asbytes=True)),
        "zlib": packed_text,
        "picture in a page": b'<img src="data:image/png;base64,' + base64.b64encode(png + ztxt) + b'">',
        "zip": member.getvalue(),
        "tar in gzip": archive.getvalue(),
        "zTXt of PNG": png + ztxt,
        "iTXt of PNG": png + _chunk(b"iTXt", b"Comment\0\1\0en\0Comment\0" + packed_text),
    }


def test_the_search_finds_a_secret_in_every_kind_of_packed_file() -> None:
    secret = f"{MARK}x".encode() * 40  # long enough that each packs it
    for name, data in _planted_files(secret).items():
        assert secret not in data, f"{name} packs nothing"
        assert any(MARK in text for text in readings(data)), name


def test_the_search_finds_what_a_database_keeps_compressed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("CREATE TABLE kept (body BLOB)")
        database.execute("INSERT INTO kept VALUES (?)", (zlib.compress(f"{MARK}x".encode() * 40),))
        database.commit()
    assert MARK.encode() not in (tmp_path / "a.db").read_bytes()
    assert any(MARK in text for text in everything(tmp_path / "a.db"))


def test_the_watch_sees_a_command_line() -> None:
    began = time.monotonic()
    watch = _Watch()
    watch.start()
    with subprocess.Popen(["sleep", "65.1234"]) as process:
        while not any("65.1234" in line for line in watch.found) and time.monotonic() - began < 60:
            time.sleep(0.05)
        process.kill()
    watch.over.set()
    assert any("65.1234" in line for line in watch.found)
