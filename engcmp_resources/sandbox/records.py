"""What a sandbox is asked and what it answers, as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from engcmp_resources.errors import EngcmpError

MIB = 1 << 20


class NoSandboxError(EngcmpError):
    """There is no sandbox on this machine: code of a reply is not run at all."""


class BrokenSandboxError(EngcmpError):
    """The sandbox itself failed, before it ran any untrusted code, or because its engine did: it says nothing of a reply."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run (MEASURES section 7, code replies). `memory_bytes` is of all its processes and files together."""

    cpus: int = 2
    memory_bytes: int = 2048 * MIB
    processes: int = 256
    call_s: float = 10.0
    total_s: float = 300.0
    tmp_bytes: int = 64 * MIB
    shm_bytes: int = 16 * MIB
    output_bytes: int = MIB
    open_files: int = 256

    def as_json(self) -> dict[str, float]:
        """For a receipt."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Call:
    """How one call of the program ended. `output` is what it wrote to its own descriptor; `exit` is negative for a signal.

    `cause` says what the supervisor ended it for: `time` or `output`; None where it ended by itself.
    """

    output: bytes
    exit: int
    cause: Literal["time", "output"] | None


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a sandbox: a record for each call that ended, in order.

    `ending`: `complete`; `time` (the limit of the whole run); `output` (more than a run may write); `foreign` (something else wrote into
    the verdict channel); `lost` (the supervisor ended without a word, for a cause that is not known). `said` is the end of what the
    sandbox's own tools printed: for a person to read, it decides nothing.
    """

    calls: tuple[Call, ...]
    ending: Literal["complete", "time", "output", "foreign", "lost"]
    python: str
    said: str = ""


class Sandbox(Protocol):
    """A place in which a Python program does no harm. `run` starts one afresh each time and leaves nothing behind."""

    @property
    def name(self) -> str:
        """`docker` or `bubblewrap`."""

    def facts(self) -> dict[str, Any]:
        """What a receipt says of it: its name and versions; no path, no host."""

    def run(self, program: str, inputs: Sequence[bytes], limits: Limits) -> Ran:
        """Run `program` once for each of `inputs`, each in a process of its own: input on fd 0, output on the fd in `sys.argv[1]`.

        Raises BrokenSandboxError where the sandbox itself fails.
        """
