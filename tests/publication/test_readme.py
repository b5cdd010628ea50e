"""The README points at what exists, and its picture is small."""

from __future__ import annotations

import io
import re
from pathlib import Path

from PIL import Image

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def test_every_relative_link_leads_to_a_file_or_folder() -> None:
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", README) if "://" not in target]
    assert targets
    assert [target for target in targets if not (CHECKOUT / target).exists()] == []


def test_every_path_of_the_map_exists() -> None:
    block = re.search(r"## Where things are\n\n```\n(.*?)```", README, re.DOTALL)
    assert block is not None
    for line in block[1].splitlines():
        first = line.split()[0]
        base = (CHECKOUT / first).parent
        names = [first, *(str((base / name).relative_to(CHECKOUT)) for name in line.split()[1:] if name.endswith("/"))]
        assert [name for name in names if not (CHECKOUT / name).exists()] == []


def test_every_command_of_the_readme_is_one() -> None:
    commands = set(re.findall(r"\.venv/bin/engcmp (\w+)", README))
    known = (CHECKOUT / "engcmp_assets" / "commands" / "main.py").read_text(encoding="utf-8")
    assert commands
    assert [name for name in commands if f'"{name}":' not in known] == []
    targets = set(re.findall(r"`?make (\w+)", README))
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_the_picture_is_a_small_png() -> None:
    picture = (CHECKOUT / "engcmp_assets" / "publication" / "readme_plot.png").read_bytes()
    assert len(picture) < 60_000
    assert Image.open(io.BytesIO(picture)).format == "PNG"
