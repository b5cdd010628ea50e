"""Known vulnerabilities of the locked packages (`make audit-packages`), by pip-audit in an environment of its own.

It needs a service that knows them. Where none can be reached, that is said in words that cannot be overlooked, and is no failure: a fault
of the network is none of the packages. A package with a known vulnerability is one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent
LOCKS = (
    "requirements.lock",
    "requirements-dev.lock",
    "engcmp_resources/deploy/requirements.lock",
    "engcmp_resources/vllm_environment.lock",
    "tests/machines/requirements.lock",
)
TOOL = "pip-audit==2.10.1"
SERVICES = ("pypi", "osv")
_DEADLINE_S = 600.0
_SAID_CHARACTERS = 300
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Audited:
    """What a service said of a lock: how many packages it looked at, each vulnerability, and packages that it could not look at."""

    service: str
    packages: int
    vulnerable: tuple[str, ...]
    skipped: tuple[str, ...]


def audit(lock: str, run: Run) -> Audited | list[str]:
    """Ask one service after the other about a lock; where none gave an answer, why not."""
    why = []
    for service in SERVICES:
        options = [
            "--requirement",
            lock,
            "--disable-pip",
            "--no-deps",  # a lock names them all, with hashes or (vLLM's) without
            "--format",
            "json",
            "--progress-spinner",
            "off",
        ]
        done = run([*options, "--vulnerability-service", service])
        try:
            listed = json.loads(done.stdout)["dependencies"]
        except (ValueError, KeyError, TypeError):
            words = done.stderr.split("\n") if done.stderr.strip() else [f"exit {done.returncode} without a word"]
            last = next(line for line in reversed(words) if line.strip())
            why.append(f"{service}: {last.strip()[:_SAID_CHARACTERS]}")
            continue
        looked = [one for one in listed if "vulns" in one]
        if not looked:
            why.append(f"{service}: it looked at none of {len(listed)} packages")
            continue
        return Audited(
            service, len(looked),
            tuple(f"{one['name']} {one['version']}: {bug['id']}, mended in {', '.join(bug['fix_versions']) or 'no version yet'}"
                  for one in looked for bug in one["vulns"]),
            tuple(f"{one['name']}: {one['skip_reason']}" for one in listed if "skip_reason" in one),
        )  # fmt: skip
    return why


def report(locks: Sequence[str], run: Run, say: Callable[[str], None] = print) -> int:
    """Say what was found of each lock; 1 where a package has a known vulnerability, else 0."""
    failed = False
    for lock in locks:
        found = audit(lock, run)
        if isinstance(found, list):
            say("=" * 100)
            say(f"NOT AUDITED: {lock}. No vulnerability service was reached, so nothing is known of its packages:")
            for one in found:
                say(f"  {one}")
            say("Run `make audit-packages` where pypi.org or api.osv.dev can be reached.")
            say("=" * 100)
            continue
        failed |= bool(found.vulnerable)
        say(
            f"{lock}: {found.packages} packages, {len(found.vulnerable)} known vulnerabilities (service {found.service})"
        )
        for text in (*found.vulnerable, *(f"not looked at: {one}" for one in found.skipped)):
            say(f"  {text}")
    return int(failed)


def main() -> int:
    """Install the tool beside nothing of ours, and audit each lock."""
    with tempfile.TemporaryDirectory(prefix="engcmp-audit-") as folder:
        venv.create(folder, with_pip=True)
        binary = Path(folder) / "bin"
        installed = subprocess.run(
            [binary / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", TOOL],
            capture_output=True, text=True, check=False, timeout=_DEADLINE_S,
        )  # fmt: skip

        def run(options: Sequence[str]) -> subprocess.CompletedProcess[str]:
            if installed.returncode != 0:
                return installed
            try:
                return subprocess.run(
                    [binary / "pip-audit", *options], capture_output=True, text=True, check=False, timeout=_DEADLINE_S, cwd=CHECKOUT
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return subprocess.CompletedProcess([], 1, "", f"no answer within {_DEADLINE_S:.0f} s")

        return report(LOCKS, run)


if __name__ == "__main__":
    sys.exit(main())
