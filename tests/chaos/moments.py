"""How many kills there are, which fall to which test, and what they hit: by one seed, so that a failure can be repeated. No tests."""

from __future__ import annotations

import os

MOMENTS = int(os.environ.get("ENGCMP_CHAOS_MOMENTS", "8"))  # `make chaos`: 50
SEED = int(os.environ.get("ENGCMP_CHAOS_SEED", "20261129"))
VICTIMS = ("run worker", "daemon", "engine", "webserver")
# A run of the command has child processes too, so that the few kills of CI go to the other places.
PLACES = ("served", "contained") if MOMENTS < 24 else ("served", "contained", "child")
OF_COMMAND = max(1, MOMENTS // 4)
"""The kills of a run that the command started; the others are of runs that the UI started, in each place in turn."""
UNDER_UI = max(MOMENTS - OF_COMMAND, len(PLACES) * len(VICTIMS))
"""In each place every kind of victim at least once, however few the moments are."""


def victims_in(place: str) -> list[str]:
    """Whom the kills in a place hit, in order: over the places and within each, every kind of victim comes in its turn."""
    first = PLACES.index(place)
    turns = range(first, UNDER_UI, len(PLACES))
    return [VICTIMS[(first + number) % len(VICTIMS)] for number, _ in enumerate(turns)]
