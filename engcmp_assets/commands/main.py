"""The command `engcmp`. Errors go to standard error as one line and exit with 1; each command has an example in its help."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click

from engcmp_assets.kernel import row_loop
from engcmp_resources.disk import FULL_REMEDY
from engcmp_resources.errors import EngcmpError
from engcmp_resources.object_cache import ObjectCache
from engcmp_resources.places import home_folder

# Where each command lives, and its line in the list of all. Loaded when called: neither `engcmp verify` nor the list waits for Dagster.
_COMMANDS = {
    "demo": ("run", "Measure the study smollm2-cpu here and print its summary."),
    "run": ("run", "Measure a study: its arms, comparisons, pages and catalog."),
    "ui": ("ui", "Open the Dagster UI on this machine."),
    "verify": ("audit", "Prove a study offline: each hash, chain and figure again."),
    "trace": ("audit", "Follow one figure to the frozen hash, receipt by receipt."),
    "audit": ("audit", "Search a study for faults and hold its claims to evidence."),
    "claims": ("claims", "Hold a file of claims against what was measured."),
    "catalog": ("catalog", "List every file of every artifact: path, columns, receipt."),
    "export": ("export", "Write a study as a folder that Python alone verifies."),
    "plan": ("plan", "Count what a study asks for, and what of it is done."),
    "fetch": ("fetch", "Fetch what a study pins, or say what that would be."),
    "prompts": ("prompts", "Make a study's prompt set without a network."),
    "freeze": ("freeze", "Freeze a new study, an iteration, or a published copy."),
    "amend": ("freeze", "Freeze a study anew under another hash, with the reason."),
    "versions": ("versions", "Look for new engine versions, and approve them."),
    "launch": ("launch", "What is known of launches: what differs between two."),
    "reference": ("reference", "Compute a study's reference rows for your own token ids."),
    "teacher": ("teacher", "Compute full rows of a transformers model."),
    "panel": ("panel", "Lay out a published panel for engcmp score."),
    "relate": ("panel", "Say which tensors two checkpoints share."),
    "score": ("score", "Score row files against a reference, and compare arms."),
    "tails": ("score", "Print how bad the worst rows of a row file are."),
    "bar": ("score", "Judge a candidate by the one-sided paired bar."),
    "throughput": ("throughput", "Measure the speed of an OpenAI-compatible server."),
    "replies": ("replies", "Judge replies: how each ended, and whether in a loop."),
    "tools": ("tools", "Tool calling: run scenarios, import and compare results."),
    "push": ("shared", "Put a study's results into the object store."),
    "pull": ("shared", "Take a study's results from the object store."),
    "reap": ("reap", "End runs whose worker is gone, here or on another machine."),
    "gc": ("gc", "Clean up after killed runs; remove unreached files."),
}
INTERRUPTED = 130
# What Ctrl-C leaves: a capture goes on where it was, results that are written as a whole are not there yet.
_KEPT = "what is complete is kept, start again to continue"
_STOPPED = {"score": "nothing was written", "replies": "nothing was written"}
_LEAST_FREE_BYTES = 16 << 20


def _loaded(name: str) -> ModuleType:
    """The module. What loading makes stays: looking for garbage in it, meanwhile and ever after, takes a seventh of the time of loading."""
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _keep_examples_whole(command: click.Command) -> None:
    """An example is there to be copied: it is never wrapped within a name, as click wraps text that does not say otherwise."""
    if command.epilog and "\b" not in command.epilog:
        command.epilog = "\n\n".join(f"\b\n{example}" for example in command.epilog.split("\n\n"))
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _keep_examples_whole(inner)


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(_loaded(f"engcmp_assets.commands.{_COMMANDS[cmd_name][0]}"), cmd_name)
        _keep_examples_whole(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in _COMMANDS.items()])


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: engcmp demo, then engcmp verify smollm2-cpu",
)
@click.version_option(package_name="engcmp")
def cli() -> None:
    """Compare LLM inference engines on the same checkpoint, and prove every figure.

    Results lie under ENGCMP_HOME (default: .engcmp in the checkout).

    Exit status: 0 done, and what was asked for holds; 1 an error, or something that does not hold, with its place and remedy; 2 wrong
    usage, an option or argument that is missing or does not fit; 3 a claim that is refused or rewritten (`claims`), a candidate
    outside the bar (`bar`); 130 stopped by Ctrl-C.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit 0, 1 for an error that names its remedy, 2 for wrong usage, 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal lacks, in whatever a file holds, must not end a report in the middle.
            stream.reconfigure(errors="backslashreplace")
    row_loop.keep_objects(ObjectCache())
    try:
        result: Any = cli.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except EngcmpError as error:
        _fail(error)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except _interruptions():
        asked = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        print(f"engcmp: stopped; {_STOPPED.get(asked, _KEPT)}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:  # what it stands for is looked for; any other goes on as it is
        explained = _explained(error)
        if explained is None:
            raise
        _fail(explained)
    sys.exit(result if isinstance(result, int) else 0)


def _fail(error: EngcmpError) -> NoReturn:
    """One line, whatever another library put into its words, and exit 1."""
    print(f"engcmp: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(1)


def _interruptions() -> tuple[type[BaseException], ...]:
    """What Ctrl-C raises. Within a run it is Dagster's own class; where Dagster was not loaded, it cannot be that one."""
    dagster = sys.modules.get("dagster")
    ours = (KeyboardInterrupt, click.Abort)
    return ours if dagster is None else (*ours, dagster.DagsterExecutionInterruptedError)


def _explained(error: BaseException) -> EngcmpError | None:
    """The error that a user can act on behind one of another library: Dagster's database meets a full disk before we do."""
    chain = list(_chain(error))
    ours = next((cause for cause in chain if isinstance(cause, EngcmpError)), None)
    if ours is not None:
        return ours
    full = any(isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT) for cause in chain)
    database = next((cause for cause in chain if isinstance(cause, sqlite3.Error)), None)
    home = home_folder()
    if full or (database is not None and ("disk is full" in str(database) or _nearly_full(home))):
        return EngcmpError("the disk is full", where=str(home), remedy=FULL_REMEDY)
    if database is not None:
        return EngcmpError(
            f"Dagster's event log cannot be used: {database}", where=str(home / "dagster"),
            remedy="make the folder writable; if it is damaged, move it away: no result lies in it",
        )  # fmt: skip
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:  # a chain of contexts may be a circle
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _nearly_full(folder: Path) -> bool:
    """Whether a database would fail there: SQLite calls it an input/output error when it cannot map its index."""
    return folder.is_dir() and shutil.disk_usage(folder).free < _LEAST_FREE_BYTES
