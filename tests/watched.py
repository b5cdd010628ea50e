"""A tiny study that watches a folder of wheels, as a user does who builds an engine at home."""

from __future__ import annotations

from pathlib import Path

from tiny import TinyStudy, make_tiny, make_wheel

from engcmp_resources.package_index import platform_key

FIRST, SECOND = "2099.1.1", "2099.1.2"
ENGINE = "llamacpp"


def make_watched(root: Path, measured_home: Path, *, approval: str = "wait") -> TinyStudy:
    """The tiny study, not frozen yet, with its place of releases changed to the folder `wheels`."""
    tiny = make_tiny(root, measured_home)
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    start, end = text.index("[releases.llamacpp]"), text.index("[drift]")
    rule = f"""[releases.{ENGINE}]
place = "folder"
name = "{tiny.root / "wheels"}"
package = "xllamacpp"
license = "MIT"
member = "xllamacpp/xllamacpp.abi3.so"
platforms = ["{platform_key()}"]
tags = '2099\\.1\\.(?P<build>\\d+)'
version = "b{{build}}"
approval = "{approval}"
[releases.{ENGINE}.checkpoints]
q4_0 = ".*"

"""
    path.write_text(text[:start] + rule + text[end:], encoding="utf-8")
    return tiny


def release(tiny: TinyStudy, version: str, library: Path, note: str = "") -> Path:
    """Put a release into the folder; with another note it is the same release with other bytes."""
    return make_wheel(tiny.root / "wheels", version, library, platform_key(), note)


def iterations(tiny: TinyStudy) -> dict[str, bytes]:
    folder = tiny.folder / "iterations"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}
