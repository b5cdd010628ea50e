"""The starts of an engine as a measurement's journal knows them: which there were, how each ended, and which are void."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_resources.journal import Journal

KILLED = {"missing": "the run was killed before the engine's stop"}
"""What stands for the GPUs after a start that has no end."""


class JournalledStarts:
    """What every measurement within an engine's life keeps of its starts."""

    journal: Journal

    def starts(self) -> list[dict[str, Any]]:
        """The starts, each with what was seen of the GPUs before it and after its end, and why it is void, if it is."""
        ends, voids = self._by_start("end"), self._by_start("void")
        return [
            entry
            | {"gpus_after": ends.get(entry["start"], {}).get("gpus_after", KILLED)}
            | ({"void": voids[entry["start"]]["reasons"]} if entry["start"] in voids else {})
            for entry in self.journal.entries
            if entry["kind"] == "start"
        ]

    def _by_start(self, kind: str) -> dict[int, dict[str, Any]]:
        return {entry["start"]: entry for entry in self.journal.entries if entry["kind"] == kind}

    def journal_start(
        self, start: int, launch: int, path: str, facts: Mapping[str, Any], gpus_before: Mapping[str, Any]
    ) -> None:
        """A start that is ready. `launch` is the number of what it serves, 0 for none; `path` how its answers are used."""
        self.journal.append(
            {
                "kind": "start", "start": start, "launch": launch, "path": path, "facts": dict(facts), "gpus_before": dict(gpus_before),
            }
        )  # fmt: skip

    def add_end(self, start: int, gpus_after: Mapping[str, Any]) -> None:
        """What was seen of the GPUs after the start's end."""
        self.journal.append({"kind": "end", "start": start, "gpus_after": dict(gpus_after)})

    def add_void(self, start: int, reasons: Sequence[str]) -> None:
        """What the start measured does not count: it is missing from now on."""
        self.journal.append({"kind": "void", "start": start, "reasons": list(reasons)})


class ServingStarts(JournalledStarts):
    """The starts of an engine under load or asked for replies."""

    def add_start(self, start: int, repeat: int, facts: Mapping[str, Any], gpus_before: Mapping[str, Any]) -> None:
        """A start that is ready; `repeat` is the first one of the speed plan that is measured in it, 0 where none is."""
        self.journal_start(start, repeat, "serving", facts, gpus_before)
