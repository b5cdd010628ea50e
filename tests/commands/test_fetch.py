"""`engcmp fetch`: what a study lists, how big it is, and what is not known; then the files, or exit 1 and what failed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from homes import CHECKOUT, STUDY, Here, assert_one_clear_line

from engcmp_resources.canonical import sha256_bytes

TEXT = b"a document"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    monkeypatch.delenv("ENGCMP_MIRROR", raising=False)
    return Here(monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study that lists a text of a mirror, a model that is not pinned, and an image that is not taken."""
    folder = tmp_path / "protocol" / STUDY
    shutil.copytree(CHECKOUT / "protocol" / STUDY, folder)
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(folder.parent))
    entries: list[dict[str, Any]] = [
        {
            "id": "texts", "kind": "mirror", "role": "texts", "what": "documents", "where": "documents", "revision": "v1",
            "files": [{"path": "one.txt", "sha256": sha256_bytes(TEXT), "bytes": len(TEXT)}], "licence": "CC0-1.0", "bytes": len(TEXT),
        },
        {
            "id": "model", "kind": "hf", "role": "model", "what": "a model", "where": "owner/model", "revision": "unknown",
            "repo_type": "model", "files": "unknown", "licence": "unknown", "bytes": "unknown", "about_bytes": 125_000_000_000,
            "unknown": [
                {"field": "revision", "why": "no document states it"}, {"field": "files", "why": "it was not listed"},
                {"field": "licence", "why": "not stated"}, {"field": "bytes", "why": "only about"},
            ],
        },
        {
            "id": "image", "kind": "registry", "role": "image", "what": "an image", "where": "host/image", "revision": "sha256:" + "0" * 64,
            "files": "unknown", "licence": "MIT", "bytes": "unknown", "fetch": False, "note": "a desktop loads it itself",
            "unknown": [{"field": "files", "why": "a registry lists them"}, {"field": "bytes", "why": "not stated"}],
        },
    ]  # fmt: skip
    (folder / "SOURCES.json").write_text(json.dumps({"schema": "engcmp.study-sources/1", "sources": entries}))
    mirror = tmp_path / "mirror" / "documents"
    mirror.mkdir(parents=True)
    (mirror / "one.txt").write_bytes(TEXT)
    return folder


def test_a_dry_run_says_what_would_be_fetched_how_big_it_is_and_what_is_not_known(
    here: Here, folder: Path, tmp_path: Path
) -> None:
    done = here("fetch", STUDY, "--dry-run", "--mirror", str(tmp_path / "mirror"), home=tmp_path / "home")
    assert done.returncode == 0 and not (tmp_path / "home").exists()
    assert "missing     10 bytes  one.txt" in done.stdout and "licence: CC0-1.0" in done.stdout
    assert "would be fetched: 10 bytes" in done.stdout
    assert "the revision of source model (a model) is not known: no document states it" in done.stdout
    assert "its size is stated as 125.0 GB" in done.stdout
    assert "1 of 2 sources whose pin is not stated: model" in done.stdout and "host/image" not in done.stdout


def test_what_can_be_had_is_fetched_and_what_cannot_is_named_with_exit_1(
    here: Here, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGCMP_MIRROR", str(tmp_path / "mirror"))
    done = here("fetch", STUDY, home=tmp_path / "home")
    assert done.returncode == 1 and "1 of 2 sources whose pin is not stated: model" in done.stdout
    fetched = tmp_path / "home" / "fetched" / STUDY
    assert (fetched / "texts" / "one.txt").read_bytes() == TEXT
    done = here("fetch", STUDY, "--source", "texts", "--json", home=tmp_path / "home")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["folder"] == str(fetched)
    assert found["sources"][0]["files"] == [
        {"path": "one.txt", "sha256": sha256_bytes(TEXT), "bytes": 10, "here": True}
    ]
    done = here("fetch", STUDY, "--source", "texts", "--dry-run", home=tmp_path / "home")
    assert "here        10 bytes  one.txt" in done.stdout and "would be fetched: 0 bytes" in done.stdout


def test_an_unknown_source_and_a_study_without_a_list_are_one_clear_line(
    here: Here, folder: Path, tmp_path: Path
) -> None:
    assert_one_clear_line(here("fetch", STUDY, "--source", "x", home=tmp_path), "no source 'x'", "image, model, texts")
    (folder / "SOURCES.json").write_text("{}")
    assert_one_clear_line(here("fetch", STUDY, home=tmp_path), "SOURCES.json field schema", str(folder))
    (folder / "SOURCES.json").unlink()
    assert_one_clear_line(here("fetch", STUDY, home=tmp_path), "has no SOURCES.json", f"engcmp run {STUDY}")
