"""A study as small as one can be, made of the real one's protocol: two short texts, one arm, a few rows on both score paths."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homes import CHECKOUT, STUDY, engcmp_here

from engcmp_resources.canonical import sha256_file

TINY = "smollm2-tiny"
BASE_ARM, NEW_ARM = "q4_0/llamacpp@b11549", "q4_0/llamacpp@b99"
_EDITS = (
    (f'study = "{STUDY}"', f'study = "{TINY}"'),
    ("rows_per_window = 32", "rows_per_window = 4"),
    ("rows_per_window = 8\n", "rows_per_window = 2\n"),
    ("rows_per_window = 128", "rows_per_window = 8"),
    ('windows = ["code-1", "prose-1"]', 'windows = ["code-1"]'),
    ("launches = 2", "launches = 1"),
    ("repeats = 2", "repeats = 1"),
    ("replicates = 20000", "replicates = 200"),
    ('arms = ["q8_0/llamacpp@b11549"]', 'arms = ["q4_0/llamacpp@b11549"]'),
)
# The speed block, which would only cost time: tests of it write their own.
SPEED_BLOCK = re.compile(r"# -+ Block T.*?(?=# -{20})", re.DOTALL)
_WHEEL_VERSION = "2099.1.1"


@dataclass(frozen=True)
class TinyStudy:
    """A folder with the protocol, a home and a folder of wheels; nothing in it is reached over a network."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def folder(self) -> Path:
        return self.root / "protocol" / TINY

    @property
    def frozen(self) -> bytes:
        return (self.folder / "FROZEN.json").read_bytes()

    @property
    def iteration(self) -> Path:
        return self.folder / "iterations" / "b99.toml"

    @property
    def variables(self) -> dict[str, str]:
        locks = self.root / "locks"
        locks.mkdir(mode=0o700, exist_ok=True)
        return {
            "ENGCMP_PROTOCOL": str(self.root / "protocol"), "ENGCMP_LOCK_DIR": str(locks),
            "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.root / "wheels"),
        }  # fmt: skip

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return engcmp_here(*arguments, **({"ENGCMP_HOME": str(self.home)} | self.variables | variables))

    def python(self, code: str) -> str:
        """What a piece of Python prints last, run where the commands run."""
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | self.variables | {"ENGCMP_HOME": str(self.home)},
            cwd=CHECKOUT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return (done.stdout.splitlines() or [""])[-1]


def write_protocol(root: Path) -> None:
    """The folder of the tiny study, not frozen yet."""
    source, folder = CHECKOUT / "protocol" / STUDY, root / "protocol" / TINY
    (folder / "texts").mkdir(parents=True)
    for name in ("code-1.txt", "prose-1.txt"):
        text = (source / "texts" / name).read_text(encoding="utf-8")
        (folder / "texts" / name).write_text(text[:200], encoding="utf-8")
    text = (source / "protocol.toml").read_text(encoding="utf-8")
    text = SPEED_BLOCK.sub("", text)
    for old, new in _EDITS:
        assert old in text, old
        text = text.replace(old, new)
    arms = re.compile(r'\[\[arms\]\]\narm = "([^"]*)"\n')
    text = arms.sub(lambda found: found[0] if found[1] == BASE_ARM else "", text)
    pairs = re.compile(r"\[\[comparisons\]\]\npair_id = \"([^\"]*)\"\n(?:[^\n\[]+\n)+")
    text = pairs.sub(lambda found: found[0] if found[1] == "decode-vs-prefill-q4_0" else "", text)
    (folder / "protocol.toml").write_text(text, encoding="utf-8")


def make_tiny(root: Path, measured_home: Path) -> TinyStudy:
    """The tiny study beside a home that holds the real one's weights, library and checkpoints, and no result."""
    write_protocol(root)
    shutil.copytree(measured_home / "store", root / "home" / "store", copy_function=os.link)
    (root / "wheels").mkdir()
    return TinyStudy(root)


def copy_of(tiny: TinyStudy, root: Path) -> TinyStudy:
    """A copy to change: replace files of its home, never write into them."""

    def link(source: str, target: str) -> Any:
        return shutil.copy2(source, target) if "/dagster/" in source else os.link(source, target)

    shutil.copytree(tiny.root / "protocol", root / "protocol")
    shutil.copytree(tiny.root / "home", root / "home", symlinks=True, copy_function=link)
    (root / "wheels").mkdir()
    return TinyStudy(root)


def make_wheel(folder: Path, version: str, library: Path, platform_key: str, note: str = "") -> Path:
    """A wheel of xllamacpp around a library; another `note` gives the same release other bytes."""
    tag = {"linux-x86_64": "manylinux2014_x86_64", "linux-aarch64": "manylinux2014_aarch64"}.get(
        platform_key, "macosx_11_0_arm64"
    )
    wheel = folder / f"xllamacpp-{version}-cp310-abi3-{tag}.whl"
    about = f"xllamacpp-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: xllamacpp\nVersion: {version}\n" + (f"Summary: {note}\n" if note else "")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(library, "xllamacpp/xllamacpp.abi3.so")
        archive.writestr(f"{about}/METADATA", metadata)
        archive.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp310-abi3-{tag}\n")
        archive.writestr(f"{about}/RECORD", "")
    return wheel


def write_iteration(tiny: TinyStudy, library: Path, platform_key: str) -> None:
    """A local wheel of another version number around the real library, and the iteration that pins it and adds an arm."""
    wheel = make_wheel(tiny.root / "wheels", _WHEEL_VERSION, library, platform_key)
    digest = sha256_file(wheel)
    tiny.iteration.parent.mkdir()
    tiny.iteration.write_text(
        f"""schema = "engcmp.iteration/1"
because = "a release that came later"
[sources.llamacpp-b99]
package = "xllamacpp"
version = "{_WHEEL_VERSION}"
license = "MIT"
[sources.llamacpp-b99.wheels.{platform_key}]
file = "{wheel.name}"
sha256 = "{digest}"
member = "xllamacpp/xllamacpp.abi3.so"
member_sha256 = "{library.stem}"
[versions.llamacpp.b99]
source = "llamacpp-b99"
[[arms]]
arm = "{NEW_ARM}"
[[comparisons]]
pair_id = "b99-vs-b11549"
label = "b99 beside b11549"
candidate = "{NEW_ARM}"
baseline = "{BASE_ARM}"
""",
        encoding="utf-8",
    )
