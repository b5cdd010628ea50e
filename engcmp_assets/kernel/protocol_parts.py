"""A protocol that lies in several files: what `include` adds, and settings of engines that are files which a user can copy.

`include = ["arms.toml"]` at the top of protocol.toml adds the tables of these files. `config_file` and `environment_file` in the settings
of an engine stand for a table `config` or `environment` of the lines KEY=VALUE of a file; what the table itself says goes first.
All are files of the study's folder, so the freeze covers their raw bytes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from engcmp_resources.errors import EngcmpError

_LINE = re.compile(r"(?:export )?([A-Z][A-Z0-9_]*)=(\S+(?: \S+)*)")
_TABLES = {"config_file": "config", "environment_file": "environment"}
_MEND = "mend the line it names"


def read_parts(data: bytes, files: Mapping[str, bytes], *, where: str) -> dict[str, Any]:
    """protocol.toml's bytes as one document, with its included files and its settings' files in their places.

    `files` are those of the study's folder by name. Raises EngcmpError naming the file for one that is missing, that is not TOML, or that
    gives a table which another one gives too.
    """
    whole = _toml(data, where)
    names = whole.pop("include", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise EngcmpError("protocol field include is no list of file names", where=where, remedy=_MEND)
    for name in names:
        part = _toml(_file(files, name, "include", where), f"{where}, {name}")
        _add(whole, part, f"{where}, {name}")
    engines = whole.get("engines")
    return whole | ({"engines": _filled(engines, files, "engines", where)} if isinstance(engines, dict) else {})


def settings_file(data: bytes, *, where: str) -> dict[str, str]:
    """Lines KEY=VALUE as a table. Blank lines and whole lines of comment (#) are passed over, `export ` before a key is too.

    Raises EngcmpError naming the line for anything else: launchers take no quotes, no comment behind a value and no key twice.
    """
    found: dict[str, str] = {}
    for number, raw in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or re.search(r"[\"'`$\\]| #", match[2]) or match[1] in found:
            raise EngcmpError(
                f"line {number} is no KEY=VALUE: {line[:80]}", where=where,
                remedy="write it without quotes, variables and comments, and each key once",
            )  # fmt: skip
        found[match[1]] = match[2]
    return found


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid upon it, table by table; anything that is no table is replaced."""
    found = dict(base)
    for key, value in over.items():
        own = found.get(key)
        found[key] = merged(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return found


def _toml(data: bytes, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngcmpError(f"protocol is not valid TOML: {error}", where=where, remedy=_MEND) from error


def _add(whole: dict[str, Any], part: Mapping[str, Any], where: str) -> None:
    """Tables are joined key by key, lists one after the other; a value that both give is refused."""
    for key, value in part.items():
        own = whole.get(key)
        if key not in whole:
            whole[key] = value
        elif isinstance(own, list) and isinstance(value, list):
            whole[key] = [*own, *value]
        elif isinstance(own, dict) and isinstance(value, Mapping):
            _add(own, value, where)
        else:
            raise EngcmpError(f"protocol field {key} is given twice", where=where, remedy="leave one of them out")


def _filled(value: Any, files: Mapping[str, bytes], field: str, where: str) -> Any:
    if isinstance(value, list):
        return [_filled(one, files, field, where) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: _filled(one, files, f"{field}.{key}", where) for key, one in value.items() if key not in _TABLES}
    for key, table in _TABLES.items():
        if key in value:
            read = settings_file(_file(files, value[key], f"{field}.{key}", where), where=f"{where}, {value[key]}")
            found[table] = merged(read, found.get(table, {}))
    return found


def _file(files: Mapping[str, bytes], name: Any, field: str, where: str) -> bytes:
    if not isinstance(name, str) or name not in files:
        raise EngcmpError(
            f"protocol field {field} names {name!r}, which is no file of the study's folder", where=where,
            remedy="put the file there, or mend the name",
        )  # fmt: skip
    return files[name]
