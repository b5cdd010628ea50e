"""The bundle of the measured study, made once by the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from homes import STUDY, engcmp


@pytest.fixture(scope="session")
def bundle(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported bundle. Read it; change only copies (`Forger.write`)."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    done = engcmp("export", STUDY, "--out", str(folder), home=measured_home)
    assert done.returncode == 0, done.stderr
    return folder
