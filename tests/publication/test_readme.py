"""Every README points at what exists and names commands that exist; the first one's picture is small."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from PIL import Image

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
# The first one leads to the others; those of tests are tables of their own.
ROOMS = (
    "protocol",
    "engcmp_assets",
    "engcmp_assets/audit",
    "engcmp_assets/commands",
    "engcmp_resources/deploy",
    "engcmp_resources/engines",
)
EACH = pytest.mark.parametrize("folder", (".", *ROOMS))


def read(folder: str) -> str:
    return (CHECKOUT / folder / "README.md").read_text(encoding="utf-8")


@EACH
def test_every_relative_link_leads_to_a_file_or_folder(folder: str) -> None:
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", read(folder)) if "://" not in target]
    assert [target for target in targets if not (CHECKOUT / folder / target).exists()] == []


def test_the_first_readme_leads_to_every_room_s() -> None:
    linked = re.findall(r"\]\(([^)]+)/README\.md\)", README)
    assert sorted({*linked}) == sorted(ROOMS)


def test_every_path_of_the_map_exists() -> None:
    block = re.search(r"## Where things are\n\n```\n(.*?)```", README, re.DOTALL)
    assert block is not None
    for line in block[1].splitlines():
        first = line.split()[0]
        base = (CHECKOUT / first).parent
        names = [first, *(str((base / name).relative_to(CHECKOUT)) for name in line.split()[1:] if name.endswith("/"))]
        assert [name for name in names if not (CHECKOUT / name).exists()] == []


@EACH
def test_every_command_of_a_readme_is_one(folder: str) -> None:
    text = read(folder)
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    commands = {*re.findall(r"`engcmp (\w+)", text), *re.findall(r"(?m)^engcmp (\w+)", blocks)}
    known = (CHECKOUT / "engcmp_assets" / "commands" / "main.py").read_text(encoding="utf-8")
    assert commands or folder == "engcmp_resources/engines"
    assert [name for name in commands if f'"{name}":' not in known] == []
    targets = {*re.findall(r"`make (\w+)", text), *re.findall(r"(?m)^make (\w+)", blocks)}
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_the_picture_is_a_small_png() -> None:
    picture = (CHECKOUT / "engcmp_assets" / "publication" / "readme_plot.png").read_bytes()
    assert len(picture) < 60_000
    assert Image.open(io.BytesIO(picture)).format == "PNG"
