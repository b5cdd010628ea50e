"""Commands that compute: they share the machine with each other, and wait while a cell is timed, which they would disturb."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engcmp_assets.kernel.progress import stderr_line
from engcmp_resources.locks import host_lock

_LONGEST_WAIT_S = 12 * 3600.0


@contextmanager
def beside_no_timed_cell(command: str) -> Iterator[None]:
    """Hold this host's lock together with other analysis; while a cell is timed, say who times it and wait.

    Raises EngcmpError where it is not free within 12 hours.
    """

    def waiting(text: str) -> None:
        stderr_line(f"engcmp {command} begins when no cell is timed any more (Ctrl-C ends the wait): {text}")

    with host_lock(alone=False, who=f"engcmp {command}", waiting=waiting, timeout_s=_LONGEST_WAIT_S):
        yield
