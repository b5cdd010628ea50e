"""The bundle of the measured study, made once by the command."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from homes import STUDY, engcmp_here

from engcmp_assets.export.verifier import intervals


@pytest.fixture(scope="session", autouse=True)
def _resampled_once() -> Iterator[None]:
    """A hundred bundles that differ in one place: the same sums and counts are resampled once, others as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "resampled", lru_cache(maxsize=None)(intervals.resampled.__wrapped__))
        yield


@pytest.fixture(scope="session")
def bundle(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported bundle. Read it; change only copies (`Forger.write`)."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    done = engcmp_here("export", STUDY, "--out", str(folder), ENGCMP_HOME=str(measured_home))
    assert done.returncode == 0, done.stderr
    return folder
