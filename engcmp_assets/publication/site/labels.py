"""The check of labels: one label names one build, and one build has one label (of what launches state that they ran)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engcmp_assets.kernel.records import ArmKey

MODEL = "model"
_OF_PROCESS = {"library_sha256": "library", "model_sha256": MODEL}


@dataclass(frozen=True, slots=True)
class Labelled:
    """A label, the builds that its launches ran (one, where all is well), and other labels of the same build."""

    label: str
    builds: tuple[str, ...]
    also: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the label stands for one build and the build for no other label."""
        return len(self.builds) == 1 and not self.also


def labels_of(launches: Mapping[str, Mapping[str, Any]]) -> list[Labelled]:
    """The labels of the arms (an engine's version; a checkpoint as an engine takes it) with their builds, by arm's launch specification.

    A server that runs already states no build: its label has none and does not hold.
    """
    found: dict[str, set[str]] = {}
    for arm, spec in launches.items():
        key, identities = ArmKey.parse(arm), identities_of(spec)
        engine = {role: one for role, one in identities.items() if role != MODEL}
        found.setdefault(f"{key.engine}@{key.version}", set()).update([_build(engine)] if engine else [])
        model = identities.get(MODEL)
        found.setdefault(f"{key.checkpoint} for {key.engine}", set()).update([model] if model else [])
    return [Labelled(label, tuple(sorted(builds)), _also(label, builds, found)) for label, builds in found.items()]


def identities_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """What a launch ran, by role: an image by its digest, a launcher by its commit, a file by its SHA-256."""
    if "identities" in spec:
        return {role: str(one) for role, one in spec["identities"].items()}
    return {role: str(spec[name]) for name, role in _OF_PROCESS.items() if name in spec}


def _build(identities: Mapping[str, str]) -> str:
    return " ".join(f"{role} {one}" for role, one in sorted(identities.items()))


def _also(label: str, builds: set[str], found: Mapping[str, set[str]]) -> tuple[str, ...]:
    """Other labels of the same build; a file that two engines take may well be one."""
    others: Sequence[str] = [one for one in found if one != label and _kind(one) == _kind(label)]
    return tuple(one for one in others if builds & found[one])


def _kind(label: str) -> str:
    return label.rpartition(" for ")[2] if " for " in label else "version"
