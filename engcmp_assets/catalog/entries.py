"""The lines of the catalog, from receipts alone: one for each file of each artifact, and one for each column of each table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engcmp_assets.kernel.receipts import Column

# Of what was made here. What was taken from elsewhere has the licence that its maker states.
OWN_LICENCE = "Apache-2.0"

FILES = (
    Column("study", "str", "1", "The study"),
    Column("artifact", "str", "1", "The artifact, as the asset is called"),
    Column("partition", "str", "1", "The arm, as checkpoint/engine@version; null of what belongs to the whole study"),
    Column("output", "str", "1", "The file's name within the artifact"),
    Column("kind", "str", "1", "Type of the file: parquet, json, safetensors, gguf, png, html and others"),
    Column("role", "str", "1", "data, or view: a plot or page that is made from the data"),
    Column("path", "str", "1", "Where the file lies, below ENGCMP_HOME"),
    Column("rows", "int", "row", "Lines of a table, or rows that the file holds; null of what has neither"),
    Column("bytes", "int", "byte", "Size of the file"),
    Column("schema", "str", "1", "Columns of a table, as `name type [unit]`, parted by semicolons; empty of what is no table"),
    Column("sha256", "str", "1", "SHA-256 of the file's bytes"),
    Column("receipt_sha256", "str", "1", "The current receipt of the artifact, which names the file"),
    Column("made_by_sha256", "str", "1", "The receipt of the work that made it: another one where it was answered from the store"),
    Column("made_at", "str", "1", "When that work was finished (UTC)"),
    Column("code_version", "str", "1", "Declared version of the step and of each of its measures"),
    Column("package", "str", "1", "Version and commit of engcmp that made it; `changed` where files differed from the commit"),
    Column("frozen_sha256", "str", "1", "The frozen hash that the artifact leads to"),
    Column("licence", "str", "1", "Licence of the file: of a source as its maker states it, else that of this project"),
    Column("made_from_licences", "str", "1", "Licences of the arm's sources that it rests on; empty where it rests on none"),
)  # fmt: skip
COLUMNS = (
    Column("artifact", "str", "1", "The artifact, as the asset is called"),
    Column("partition", "str", "1", "The arm; null of what belongs to the whole study"),
    Column("output", "str", "1", "The table's file within the artifact"),
    Column("column", "str", "1", "Name of the column"),
    Column("type", "str", "1", "Type of its values"),
    Column("unit", "str", "1", "Unit of its values; 1 is a pure number"),
    Column("description", "str", "1", "What it is"),
)  # fmt: skip
_COMMIT_CHARS = 12


@dataclass(frozen=True, slots=True)
class Listed:
    """A current receipt with its hash, and the receipt of the work behind it, which is itself unless the store answered."""

    receipt: Mapping[str, Any]
    sha256: str
    maker: Mapping[str, Any]
    maker_sha256: str


def lines_of(listed: Iterable[Listed], licences: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """A line for each output of each receipt, with the fields of FILES, in the order of `listed`.

    `licences` has for each arm the licence of each output of its `sources`.
    """
    return [_line(one, output, licences) for one in listed for output in one.receipt["outputs"]]


def columns_of(listed: Iterable[Listed]) -> list[dict[str, Any]]:
    """A line for each column of each table among the outputs, with the fields of COLUMNS."""
    return [
        {
            "artifact": one.receipt["artifact"], "partition": one.receipt["arm"], "output": output["name"],
            "column": column["name"], "type": column["dtype"], "unit": column["unit"], "description": column["description"],
        }
        for one in listed
        for output in one.receipt["outputs"]
        for column in output["columns"]
    ]  # fmt: skip


def stored_bytes(files: Iterable[Mapping[str, Any]]) -> int:
    """What the files of these lines take on the disk, in bytes: one that several arms or outputs share lies there once."""
    return sum({line["path"]: int(line["bytes"]) for line in files}.values())


def as_columns(columns: Iterable[Column], lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Lines as columns, each of its own list."""
    kept = list(lines)
    return {column.name: [line[column.name] for line in kept] for column in columns}


def _line(one: Listed, output: Mapping[str, Any], licences: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    receipt, maker = one.receipt, one.maker
    of_arm = licences.get(receipt["arm"] or "", {})
    stated = of_arm.get(output["name"]) if receipt["artifact"] == "sources" else None
    return {
        "study": receipt["study"],
        "artifact": receipt["artifact"],
        "partition": receipt["arm"],
        "output": output["name"],
        "kind": output["suffix"],
        "role": output["role"],
        "path": f"store/{output['sha256'][:2]}/{output['sha256']}.{output['suffix']}",
        "rows": output["rows"],
        "bytes": output["bytes"],
        "schema": "; ".join(f"{column['name']} {column['dtype']} [{column['unit']}]" for column in output["columns"]),
        "sha256": output["sha256"],
        "receipt_sha256": one.sha256,
        "made_by_sha256": one.maker_sha256,
        "made_at": maker["finished_at"],
        "code_version": code_version(receipt["versions"]),
        "package": package_of(maker["code"]),
        "frozen_sha256": receipt["frozen_sha256"],
        "licence": stated or OWN_LICENCE,
        "made_from_licences": "" if stated else ", ".join(sorted(set(of_arm.values()))),
    }


def code_version(versions: Mapping[str, Any]) -> str:
    """The versions in a receipt as one word: that of the step, then those of its measures (`Step.code_version` is the same)."""
    return "+".join([str(versions["step"]), *(f"{name}:{one}" for name, one in versions.get("measures", {}).items())])


def package_of(code: Mapping[str, Any]) -> str:
    """`engcmp 0.1.0, commit 0123456789ab`, with `changed` where the working tree was; or why no commit is known."""
    commit = code.get("git_commit")
    if not isinstance(commit, str):
        known = commit.get("missing", "not recorded") if isinstance(commit, Mapping) else "not recorded"
        return f"{code['package']} {code['version']}, commit unknown: {known}"
    changed = ", changed" if code.get("dirty") else ""
    return f"{code['package']} {code['version']}, commit {commit[:_COMMIT_CHARS]}{changed}"
