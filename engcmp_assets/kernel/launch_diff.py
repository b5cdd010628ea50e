"""How two launches differ: what the protocol declares of each, and everything else that their receipts tell.

The list of confounds of every comparison starts here. What belongs to one start alone (times, container ids, random keys) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

_OF_ONE_START = frozenset(
    {"load_ms", "ready", "container", "address", "forced_token", "tokenizer_probed", "peak_rss_bytes", "capabilities.evidence"}
)  # fmt: skip
_TOLD_TWICE = frozenset({"engine", "version", "kind", "identities", "score_path"})  # the specification has them
# A child process's specification and settings, and what a server calls the same.
_SIZES = {
    "context_tokens": "n_ctx",
    "batch_tokens": "n_batch",
    "micro_batch_tokens": "n_ubatch",
    "threads": "n_threads",
}
_SERVER_NAMES = {"model_sha256": "identities.model", "library_sha256": "identities.library"} | {
    name: f"settings.{name}" for name in _SIZES
}
_SERVER_SETTINGS = {
    f"settings.{own}.{which}": f"settings.{name}.{which}"
    for name, own in _SIZES.items()
    for which in ("requested", "resolved")
}
_SECRET = "sha256:"  # noqa: S105 - how a receipt holds a secret: its hash
_SHOWN, _SHOWN_CHARACTERS = 6, 60
ABSENT = {"missing": "not in this launch's receipt"}
"""Of engines of two kinds: what one states and the other does not."""
NONE_THERE = {"missing": "it has none"}
"""Of engines of one kind, and of environments: a thing that only the other side has, which is a difference."""


@dataclass(frozen=True, slots=True)
class Side:
    """One launch: its specification, the facts of one start, and the host that it ran on, as receipts hold them."""

    spec: Mapping[str, Any]
    facts: Mapping[str, Any]
    host: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LaunchDifference:
    """One thing in which two launches differ. `declared`: the protocol asks for it; else it came with the engine or the host."""

    name: str
    first: Any
    second: Any
    declared: bool

    @property
    def told_by_both(self) -> bool:
        """Whether both receipts have it: engines of two kinds state different things, which proves no difference."""
        return ABSENT not in (self.first, self.second)


def launch_differences(first: Side, second: Side) -> list[LaunchDifference]:
    """Every difference between two launches, by name: first those that nothing declares, which a comparison must answer for."""
    found = [
        LaunchDifference(name, a, b, declared=True)
        for name, a, b in _differing(_specification(first, second), _specification(second, first))
    ]
    found += [
        LaunchDifference(name, a, b, declared=name.startswith("settings.") and name.endswith(".requested"))
        for name, a, b in _differing(_of_engine(first, second), _of_engine(second, first))
    ]
    comparable: str | None = ""
    if first.spec.get("kind") != second.spec.get("kind"):
        comparable = "environment." if all("environment" in side.facts for side in (first, second)) else None
    if comparable is not None:
        found = [_told(one) if one.name.startswith(comparable) else one for one in found]
    found += [
        LaunchDifference(name, a, b, declared=False)
        for name, a, b in _differing(_flat(first.host, "host."), _flat(second.host, "host."))
    ]
    return sorted(found, key=lambda one: (one.declared, one.name))


def undeclared_names(differences: Sequence[LaunchDifference]) -> list[str]:
    """The names of the differences that both receipts tell and the protocol does not declare."""
    return [one.name for one in differences if not one.declared and one.told_by_both]


def launch_confound(differences: Sequence[LaunchDifference], *, command: str) -> list[str]:
    """What a reader must hold against a comparison of two launches: nothing, or one sentence that names what was not declared.

    `command` is what prints the whole list.
    """
    undeclared = [one for one in differences if not one.declared and one.told_by_both]
    lone = sum(not one.declared and not one.told_by_both for one in differences)
    beside = f" {lone} other things are stated by one side only, so that they cannot be held together." if lone else ""
    if not undeclared:
        same = "The launches differ in nothing that both state and the protocol does not declare."
        return [f"{same}{beside} All of it: {command}."] if lone else []
    shown = [f"{one.name} ({'; '.join(_short(_text(one.first), _text(one.second)))})" for one in undeclared[:_SHOWN]]
    more = f", and {len(undeclared) - _SHOWN} more" if len(undeclared) > _SHOWN else ""
    return [
        f"Beside what the protocol declares, the two launches differ in {', '.join(shown)}{more}.{beside} All of it: {command}."
    ]


def differences_text(differences: Sequence[LaunchDifference], names: tuple[str, str]) -> str:
    """All differences for a terminal: those that nothing declares, then the declared ones."""
    if not differences:
        return f"{names[0]} and {names[1]}: the launches do not differ"
    lines = [f"first   {names[0]}", f"second  {names[1]}"]
    for declared, title in (
        (False, "not declared: a confound of every comparison"),
        (True, "declared in the protocol"),
    ):
        own = [one for one in differences if one.declared == declared and (declared or one.told_by_both)]
        lines += ["", f"{title}: {len(own)}"]
        for one in own:
            lines += [f"  {one.name}", f"    first   {_text(one.first)}", f"    second  {_text(one.second)}"]
    for side, other in (("first", "second"), ("second", "first")):
        own = [one for one in differences if not one.declared and getattr(one, other) == ABSENT]
        if own:
            title = f"stated by the {side} only, so that it cannot be held together (values with --json)"
            lines += ["", f"{title}: {len(own)}", f"  {', '.join(repr(one.name)[1:-1] for one in own)}"]
    return "\n".join(lines)


def _told(one: LaunchDifference) -> LaunchDifference:
    first, second = (NONE_THERE if value == ABSENT else value for value in (one.first, one.second))
    return replace(one, first=first, second=second)


def _specification(side: Side, other: Side) -> dict[str, Any]:
    """What was asked for; of a child process beside a server, under the server's names for the same things."""
    flat = _flat(side.spec, "")
    if "kind" in side.spec or "kind" not in other.spec:
        return flat
    return {_SERVER_NAMES.get(name, name): value for name, value in flat.items()} | {"kind": "child process"}


def _of_engine(side: Side, other: Side) -> dict[str, Any]:
    flat = _flat(side.facts, "")
    if "kind" not in side.spec and "kind" in other.spec:
        flat = {_SERVER_SETTINGS.get(name, name): value for name, value in flat.items()}
    return {
        name: value
        for name, value in flat.items()
        if name.split(".")[0] not in _OF_ONE_START | _TOLD_TWICE
        and not any(name.startswith(f"{left_out}.") for left_out in _OF_ONE_START)
    }


def _flat(value: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Nested tables as dotted names; a list is one value. A reason for a missing value is a value."""
    found: dict[str, Any] = {}
    for name, one in value.items():
        if isinstance(one, Mapping) and set(one) != {"missing"}:
            found |= _flat(one, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = one
    return found


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted({*first, *second}):
        a, b = first.get(name, ABSENT), second.get(name, ABSENT)
        secrets = all(isinstance(one, str) and one.startswith(_SECRET) for one in (a, b))
        if a != b and not (secrets and name.startswith(("environment.", "secrets."))):
            yield name, a, b


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and set(value) == {"missing"}:
        return f"missing: {value['missing']}"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value)
    return str(value)


def _short(first: str, second: str) -> list[str]:
    """Both values; of long ones the words from the first on in which they differ."""
    if max(len(first), len(second)) > _SHOWN_CHARACTERS:
        words = [text.split(" ") for text in (first, second)]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*words, strict=False)))
        if same:
            first, second = (f"..{' '.join(own[same:])}" for own in words)
    return [
        text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 2]}.." for text in (first, second)
    ]
