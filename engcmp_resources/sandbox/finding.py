"""Which sandbox this machine has: Docker, else bubblewrap, each proved from inside before it is trusted; else none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from engcmp_resources.errors import EngcmpError
from engcmp_resources.sandbox.bubblewrap import BubblewrapSandbox
from engcmp_resources.sandbox.docker_sandbox import DockerSandbox
from engcmp_resources.sandbox.records import MIB, Limits, NoSandboxError, Sandbox

_PROGRAM = Path(__file__).parent / "proof_program.py"
# Small ones, so that the proof takes a second. What holds at these holds at the real ones: they are set by the same means.
_PROOF_LIMITS = Limits(memory_bytes=160 * MIB, processes=40, call_s=20, total_s=60, shm_bytes=4 * MIB)
_CHILDREN = 6  # of 64 MiB each: every one fits, all together do not


class LocalSandbox(Sandbox, Protocol):
    """A sandbox of this machine, which says what of it can be read inside."""

    def shown(self) -> tuple[Path, ...]:
        """The folders of this machine that can be read inside."""


KINDS: tuple[Callable[[], LocalSandbox], ...] = (DockerSandbox, BubblewrapSandbox)


def find_sandbox(hidden: Sequence[Path], kinds: Sequence[Callable[[], LocalSandbox]] = KINDS) -> LocalSandbox:
    """The first sandbox that can be had and that is proved. `hidden` are folders that it must not show: the home, the checkout.

    Raises NoSandboxError with the reason of each; the check is then Missing("no sandbox").
    """
    reasons = []
    for make in kinds:
        try:
            sandbox = make()
            prove(sandbox, hidden)
        except EngcmpError as error:
            reasons.append(str(error))
        else:
            return sandbox
    raise NoSandboxError(f"no sandbox: {'. '.join(reasons)}", remedy="start Docker, or install the package bubblewrap")


def prove(sandbox: LocalSandbox, hidden: Sequence[Path]) -> None:
    """Try from inside what a sandbox must refuse. Raises NoSandboxError that names what it did not."""
    for path in hidden:
        for folder in sandbox.shown():
            if path.resolve().is_relative_to(folder.resolve()):
                raise NoSandboxError(
                    f"{sandbox.name} shows {folder}, and {path} lies in it",
                    remedy="move it out of the system's folders",
                )
    asked = {
        "look": [str(path) for path in hidden],
        "fork": _PROOF_LIMITS.processes * 2,
        "memory": _CHILDREN,
        "shared_memory": _PROOF_LIMITS.shm_bytes * 4,
    }
    found = _answers(sandbox, asked)
    _judge(sandbox.name, found["look"], found["fork"], found["memory"], found["shared_memory"])


def _answers(sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, dict[str, Any]]:
    ran = sandbox.run(
        _PROGRAM.read_text(encoding="utf-8"), [json.dumps(pair).encode() for pair in asked.items()], _PROOF_LIMITS
    )
    if ran.ending != "complete":
        raise NoSandboxError(f"{sandbox.name}: the proof of its limits ended with {ran.ending}: {ran.said}")
    return {
        name: json.loads(call.output) if call.exit == 0 else {"killed": call.exit}
        for name, call in zip(asked, ran.calls, strict=True)
    }


def _judge(
    name: str, look: dict[str, Any], fork: dict[str, Any], memory: dict[str, Any], shared: dict[str, Any]
) -> None:
    faults = {
        "the user is root": look.get("user", 0) == 0,
        f"there is a network: {look.get('networks')}": look.get("networks") not in ([], ["lo"]),
        f"files can be written: {look.get('writable')}": bool(look.get("writable", True)),
        f"folders can be seen: {look.get('seen')}": bool(look.get("seen", True)),
        "the number of processes has no limit": fork.get("made", _PROOF_LIMITS.processes) >= _PROOF_LIMITS.processes,
        "total memory has no limit": memory.get("held", 0) >= _CHILDREN,
        "shared memory has no limit": shared.get("bytes", 0) > _PROOF_LIMITS.shm_bytes,
        "nothing can be written in it": shared.get("bytes", 0) == 0 or not shared.get("own"),
    }
    wrong = [fault for fault, is_so in faults.items() if is_so]
    if wrong:
        raise NoSandboxError(f"{name} does not hold: {'; '.join(wrong)}", remedy="use the other kind of sandbox")
