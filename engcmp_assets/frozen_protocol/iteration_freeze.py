"""Freezing an iteration: the one way in which it enters a study, by hand, from the UI, or by the look for new versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engcmp_assets.frozen_protocol.engine_settings import refuse_unknown_engines
from engcmp_assets.kernel.iterations import (
    FROZEN_SUFFIX,
    Iteration,
    extended,
    frozen_iteration,
    parse_iteration,
    read_iteration,
)
from engcmp_assets.kernel.study import Study
from engcmp_resources.canonical import canonical_bytes, parse_canonical
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import ITERATIONS


def freeze_iteration(loaded: Study, name: str) -> str:
    """Write the freeze of an iteration, once all that it adds is known to fit the study; what was done, in words.

    Raises EngcmpError for an iteration that does not exist, was declined, was edited after its freeze, or does not fit.
    """
    loaded.require_frozen()
    study, folder = loaded.folder.name, loaded.folder / ITERATIONS
    if f"{name}.toml" not in loaded.iteration_files:
        known = ", ".join(loaded.iteration_names) or "none"
        raise EngcmpError(
            f"no iteration {name!r}", where=str(folder), remedy=f"there is {known}; write iterations/{name}.toml"
        )
    data, where = loaded.iteration_files[f"{name}.toml"], str(folder / f"{name}.toml")
    document = frozen_iteration(study, name, data, loaded.frozen_sha256)
    if _base_of(loaded, name) == loaded.frozen_sha256:
        read_iteration(
            name, data, _freeze_of(loaded, name), study=study, base_frozen_sha256=loaded.frozen_sha256, where=where
        )
        return f"{study}: iteration {name}: frozen already as {document['frozen_sha256']}"
    own = Iteration(name, document["frozen_sha256"], parse_iteration(data, where=where))
    if own.adds.declined is not None:
        raise EngcmpError(
            f"iteration {name} was declined: {own.adds.declined}",
            where=where,
            remedy="take the line `declined` out of it to approve it",
        )
    whole = extended(
        loaded.base, sorted([*_others(loaded, name), own], key=lambda one: one.name), where=str(loaded.folder)
    )
    refuse_unknown_engines(whole, where=where)
    replace_visible(folder / f"{name}{FROZEN_SUFFIX}", canonical_bytes(document))
    arms = ", ".join(str(arm) for arm in own.arm_keys) or "no arm"
    return f"{study}: iteration {name} ({arms}) frozen as {document['frozen_sha256']}"


def stranded(loaded: Study) -> list[str]:
    """The frozen iterations that extend another freeze than the study's: each must be frozen anew, or removed."""
    now = loaded.frozen_sha256
    return [name for name in loaded.iteration_names if _base_of(loaded, name) not in (None, now)]


def _others(loaded: Study, name: str) -> tuple[Iteration, ...]:
    """The other iterations of the present freeze. One of an earlier freeze is held against these when it is frozen anew."""
    now = loaded.frozen_sha256
    left_out = [one for one in loaded.iteration_names if one == name or _base_of(loaded, one) not in (None, now)]
    files = dict(loaded.iteration_files)
    for one in left_out:
        files.pop(f"{one}.toml", None)
        files.pop(f"{one}{FROZEN_SUFFIX}", None)
    return replace(loaded, iteration_files=files).iterations


def _base_of(loaded: Study, name: str) -> str | None:
    """The frozen hash that an iteration's freeze extends; None where it was never frozen."""
    if f"{name}{FROZEN_SUFFIX}" not in loaded.iteration_files:
        return None
    return str(_freeze_of(loaded, name).get("base_frozen_sha256"))


def _freeze_of(loaded: Study, name: str) -> dict[str, Any]:
    file = f"{name}{FROZEN_SUFFIX}"
    return parse_canonical(
        loaded.iteration_files[file], what=file, where=str(loaded.folder / ITERATIONS / file),
        remedy="restore it from git, or remove it to freeze anew",
    )  # fmt: skip
