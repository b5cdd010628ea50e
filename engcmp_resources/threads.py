"""Work on several threads at once, with its results in the order of what was given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


def in_order(given: Iterable[_Given], work: Callable[[_Given], _Found], jobs: int) -> Iterator[_Found]:
    """`work` of each, in the order in which they came, `jobs` at a time; few are in memory at once.

    An error of `work` is raised in its turn; then, and at Ctrl-C, nothing that has not begun is begun.
    """
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting: deque[Future[_Found]] = deque()
        try:
            for one in given:
                waiting.append(pool.submit(work, one))
                if len(waiting) > jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
