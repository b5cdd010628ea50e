"""Empty paths, as a shell leaves them of an unset variable: no command takes one, whichever option it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from homes import engcmp_here, everything

from engcmp_assets.commands.main import cli
from engcmp_assets.commands.paths import PathArgument

# Words that name a file or folder; a parameter whose name or help has one must be a path.
_WORDS = ("folder", "file ", "out", "_file", "python", "source", "mirror", "mask")
_NOT_PATHS = {("fetch", "sources"), ("score", "arms"), ("freeze", "placeholders")}


def commands(group: click.Group = cli, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, *names, name)
        else:
            yield (*names, name), found


PATHS = [
    (names, parameter.opts[0] if parameter.param_type_name == "option" else None, parameter.name)
    for names, command in commands()
    for parameter in command.params
    if isinstance(parameter.type, click.Path)
]


def test_every_path_of_every_command_is_of_the_kind_that_refuses_an_empty_one() -> None:
    assert len(PATHS) > 25
    for names, command in commands():
        for one in command.params:
            if isinstance(one.type, click.Path):
                assert isinstance(one.type, PathArgument), (names, one.name)
            elif (names[0], one.name) not in _NOT_PATHS and one.type is click.STRING:
                said = f"{one.name} {getattr(one, 'help', '') or ''}".lower()
                assert not any(said.split(" ")[0].endswith(word.strip()) for word in _WORDS), (names, one.name)


@pytest.mark.parametrize(
    ("names", "option", "name"), PATHS, ids=[f"{'-'.join(names)}-{name}" for names, _, name in PATHS]
)
def test_an_empty_path_is_wrong_usage_and_writes_nothing(
    names: tuple[str, ...], option: str | None, name: str, tmp_path: Path
) -> None:
    command = dict(commands())[names]
    given: list[str] = []
    for one in command.params:  # all that is required, the path in question empty
        value = "" if one.name == name else "." if isinstance(one.type, click.Path) else "1"
        if isinstance(one, click.Argument):
            given.append(value)
        elif one.name == name or one.required:
            given += [one.opts[0], value]
    before = everything(Path.cwd() / "protocol")
    done = engcmp_here(*names, *given, ENGCMP_HOME=str(tmp_path / "home"))
    assert done.returncode == 2 and "the path is empty" in done.stderr, done.stderr
    assert everything(Path.cwd() / "protocol") == before and not (tmp_path / "home").exists()
