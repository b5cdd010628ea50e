"""Other requests beside a capture, so that its steps hold them too: what rows owe to the batch that they were computed in can then be seen.

How many is a setting of the launch (`beside`). A companion generates a token in each step while the window is read; in which of the
window's steps it was is in the capture's own notes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from engcmp_resources.engines._api import Http
from engcmp_resources.errors import EngcmpError

COMPANION_TOKENS = 32  # a window is read in a few steps, and the asking whether all run takes one or two
TURNS = 4  # on a busy machine companions may end before the window is read
_RUNNING = re.compile(r"^vllm:num_requests_running(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
_POLL_S = 0.005


@contextmanager
def in_company(
    http: Http, path: str, bodies: Sequence[Mapping[str, Any]], doing: str, until: float
) -> Generator[None, None, None]:
    """Post each of `bodies`, and go on once the engine counts all of them as running; leaving waits for their answers.

    Raises EngcmpError for one that is refused, and where the engine has not counted them before one has ended.
    """
    if not bodies:
        yield
        return
    with ThreadPoolExecutor(len(bodies)) as pool:
        asked = [pool.submit(http.exchange, path, body, doing, until) for body in bodies]
        while _running(http, doing, until) < len(bodies):
            if wait(asked, timeout=_POLL_S, return_when=FIRST_COMPLETED).done or time.monotonic() > until:
                break  # by now it may be too late: the notes of the capture will tell
        yield
        for one in asked:
            status, headers, content = one.result()
            http.refuse_status(status, headers, content, doing, path)


def all_in_company(notes: Mapping[str, Any], count: int) -> bool:
    """Whether every step that read the window held `count` other requests at least."""
    return all(others >= count for others in notes["other_requests_in_step"])


def never_in_company(label: str, window_id: str, count: int) -> EngcmpError:
    """The error of a window that was not read beside its companions."""
    return EngcmpError(
        f"{label}: window {window_id}: in {TURNS} turns its steps never held all of the {count} requests that were sent beside it",
        remedy="allow that many at once (--max-num-seqs, and room in a step for their tokens), or lower `beside`",
    )


def _running(http: Http, doing: str, until: float) -> int:
    found = _RUNNING.search(http.text("/metrics", doing, until) or "")
    return int(float(found[1])) if found else 0
