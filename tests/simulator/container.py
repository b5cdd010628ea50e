"""The simulator as a container, from an image that is made here: an almost empty one, with this machine's own files mounted read-only.

Nothing is pulled. The functions are plain, so that they go with the Docker SDK and with the command line.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

from .running import CHECKOUT, command_of

IMAGE = "engcmp-simulator"
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin")
_MOUNT_POINTS = ("usr", "lib", "lib64", "bin", "tmp", "etc")


def image_tar() -> bytes:
    """The image's file system, a tar of empty folders, the same bytes each time: for `import_image_from_data` or `docker import -`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in _MOUNT_POINTS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
    return out.getvalue()


def mounts(*more: Path) -> dict[str, dict[str, str]]:
    """What is mounted, as the SDK's `volumes`: the system's libraries, Python and the checkout read-only, `more` with writing."""
    python = [Path(sys.base_prefix), Path(sys.prefix)]
    apart = [path for path in [*python, CHECKOUT] if not path.is_relative_to("/usr")]
    readable = [Path(path) for path in _SYSTEM if Path(path).exists()] + apart
    read_only = {str(path): {"bind": str(path), "mode": "ro"} for path in readable}
    return read_only | {str(path): {"bind": str(path), "mode": "rw"} for path in more}


def command(dialect: str, port: int, **options: Any) -> list[str]:
    """The command of the container; a script goes in with `script=FILE` and a mount of its folder."""
    return command_of(dialect, port=port, **options)


def run_arguments(dialect: str, port: int, *writable: Path, image: str = IMAGE, **options: Any) -> dict[str, Any]:
    """Arguments for the SDK's `containers.run`: detached, on the host's network."""
    return {
        "image": image,
        "command": command(dialect, port, **options),
        "volumes": mounts(*writable),
        "working_dir": str(CHECKOUT),
        "environment": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        "network_mode": "host",
        "detach": True,
    }
