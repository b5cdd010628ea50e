"""Digests that are known without reading a file: who says so, and when nobody is believed."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from engcmp_resources.row_layouts.known_digests import SUMS, known_sha256

CONTENT = b"rows"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "w1.safetensors"
    path.write_bytes(CONTENT)
    return path


def test_a_stored_file_and_a_link_to_it_are_known_by_their_name(tmp_path: Path) -> None:
    stored = tmp_path / "store" / DIGEST[:2] / f"{DIGEST}.safetensors"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(CONTENT)
    link = tmp_path / "w1.safetensors"
    link.symlink_to(stored)
    assert known_sha256(stored) == known_sha256(link) == (DIGEST, "the name of the stored file")


def test_a_name_of_the_same_form_elsewhere_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / f"{DIGEST}.safetensors"
    path.write_bytes(CONTENT)
    assert known_sha256(path) is None


@pytest.mark.parametrize("options", ["", "--binary "])
def test_the_list_of_sha256sum_is_believed(rows: Path, options: str) -> None:
    subprocess.run(f"sha256sum {options}*.safetensors > {SUMS}", shell=True, cwd=rows.parent, check=True)
    assert known_sha256(rows) == (DIGEST, SUMS)


def test_a_list_that_is_older_than_the_file_is_not_believed(rows: Path) -> None:
    sums = rows.parent / SUMS
    sums.write_text(f"{DIGEST}  {rows.name}\n", "utf-8")
    os.utime(sums, ns=(0, rows.stat().st_mtime_ns - 1))
    assert known_sha256(rows) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{DIGEST}  w2.safetensors\n",
        f"{DIGEST[:-1]}  w1.safetensors\n",
        f"{DIGEST}  other/w1.safetensors\n",
        f"{DIGEST}  w1.safetensors\n{'0' * 64}  w1.safetensors\n",
        "\ufffd\x00",
    ],
)
def test_a_list_that_does_not_name_the_file_once_says_nothing(rows: Path, text: str) -> None:
    (rows.parent / SUMS).write_text(text, "utf-8")
    assert known_sha256(rows) is None


def test_what_is_no_file_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / SUMS).write_text(f"{DIGEST}  dump\n", "utf-8")
    (tmp_path / "dump").mkdir()
    assert known_sha256(tmp_path / "dump") is None and known_sha256(tmp_path / "absent") is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / SUMS).mkdir()
    (tmp_path / "other" / "w1").write_bytes(CONTENT)
    assert known_sha256(tmp_path / "other" / "w1") is None
