"""The command `engcmp`. Errors go to standard error as one line and exit with 1; each command has an example in its help."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from engcmp_resources.errors import EngcmpError

# Where each command lives. Loaded when called: `engcmp verify` must not wait for Dagster.
_COMMANDS = {
    "demo": "run",
    "run": "run",
    "ui": "ui",
    "verify": "audit",
    "trace": "audit",
    "freeze": "freeze",
    "reference": "reference",
}
INTERRUPTED = 130


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"engcmp_assets.commands.{_COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="engcmp")
def cli() -> None:
    """Compare LLM inference engines on the same checkpoint, and prove every figure.

    Results lie under ENGCMP_HOME (default: .engcmp in the checkout).
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit 0, 1 for an error that names its remedy, 2 for wrong usage, 130 for Ctrl-C."""
    try:
        result: Any = cli.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except EngcmpError as error:
        print(f"engcmp: {error}", file=sys.stderr)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        print("engcmp: stopped; what is complete is kept, start again to continue", file=sys.stderr)
        sys.exit(INTERRUPTED)
    sys.exit(result if isinstance(result, int) else 0)
