"""The capture plugin of vLLM from outside: what a server is given so that it loads it, and what it wrote, checked and taken away.

A launch with the plugin is the same launch with three variables and two folders more. A serving launch never has it, so that nothing of
ours is timed with the engine. See `vllm_plugin`.
"""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engcmp_resources.containers import Mount
from engcmp_resources.disk import disk_errors
from engcmp_resources.engines.vllm_plugin.reading import MOUNTED, capture_notes, check_against_api, read_capture

__all__ = [
    "MOUNTED", "WINDOW", "PluginFiles", "capture_folder", "capture_name", "in_container", "plugin_mounts", "shown_plugin_mounts",
    "wanted_of", "with_plugin",
]  # fmt: skip
WINDOW = "engcmp_window"  # the argument of a request that names its capture
_PLUGIN = "engcmp_capture"  # as its entry point is called
_PATH, _PLUGINS, _FOLDER = "PYTHONPATH", "VLLM_PLUGINS", "ENGCMP_CAPTURE_DIR"
_PLUGIN_TARGET, _CAPTURES_TARGET = "/engcmp/vllm-plugin", "/engcmp/captures"  # in a container
_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]")
_NAME_CHARACTERS = 100


def capture_folder(scratch: Path) -> Path:
    """A new folder below a launch's scratch folder for the plugin's files, which a server of another user can write."""
    with disk_errors(scratch):
        folder = Path(tempfile.mkdtemp(prefix="captures-", dir=scratch))
        folder.chmod(0o777)  # a container's user is another one; the folder above lets no other user of this host in
    return folder


def with_plugin(environment: Mapping[str, str], *, plugin: str, captures: str) -> dict[str, str]:
    """A server's variables with those that load the plugin: the folder `plugin` comes first on PYTHONPATH, it is added to VLLM_PLUGINS
    where that names the plugins to load, and `captures` is where it writes. Both are paths as the server sees them.
    """
    path = ":".join(part for part in (plugin, environment.get(_PATH)) if part)
    found = dict(environment) | {_PATH: path, _FOLDER: captures}
    if _PLUGINS in environment:
        found[_PLUGINS] = ",".join(part for part in (environment[_PLUGINS], _PLUGIN) if part)
    return found


def wanted_of(declared: Mapping[str, Any], *, loaded: bool) -> dict[str, Any]:
    """What a launch of a kind with the plugin must prove of what is declared: without it, as in a serving launch, no full rows."""
    return {name: least for name, least in declared.items() if loaded or name != "rows"}


def in_container(environment: Mapping[str, str]) -> dict[str, str]:
    """`with_plugin`, where `plugin_mounts` are mounted."""
    return with_plugin(environment, plugin=_PLUGIN_TARGET, captures=_CAPTURES_TARGET)


def plugin_mounts(captures: Path) -> list[Mount]:
    """The plugin, read-only, and the folder that it writes to."""
    return [Mount(MOUNTED, _PLUGIN_TARGET), Mount(captures, _CAPTURES_TARGET, read_only=False)]


def shown_plugin_mounts() -> list[dict[str, Any]]:
    """The same as a receipt names them."""
    return [
        {"target": _PLUGIN_TARGET, "read_only": True, "file": "engcmp"},
        {"target": _CAPTURES_TARGET, "read_only": False, "file": "captures"},
    ]


def capture_name(window_id: str) -> str:
    """A name of its own for one capture of a window, which the plugin takes as the name of its files."""
    return f"w{_NO_FILE_NAME.sub('-', window_id)[:_NAME_CHARACTERS]}-{secrets.token_hex(4)}"


class PluginFiles:
    """The folder `captures` as seen from here; rows there are `vocab` wide."""

    def __init__(self, captures: Path, vocab: int) -> None:
        self._captures, self._vocab = captures, vocab

    def take(
        self, name: str, tokens: Sequence[int], said: Sequence[float], positions: Sequence[int], out: Path | None
    ) -> dict[str, Any]:
        """Check the capture `name` against `said`, the API's log-probabilities of tokens 1 on, write rows `positions` to `out` as raw
        float32 [n, vocab] and remove the plugin's files; what a receipt keeps of it (`reading.capture_notes`).

        Raises EngcmpError as `read_capture` and `check_against_api`: then the files stay, and `out` is not written.
        """
        window = read_capture(self._captures, name, tokens, vocab=self._vocab)
        difference = check_against_api(window, tokens, said)
        if out is not None:
            window.write_float32(positions, out)
        notes = capture_notes(window, difference)
        for ending in ("safetensors", "json"):
            (self._captures / f"{name}.{ending}").unlink(missing_ok=True)
        return notes
