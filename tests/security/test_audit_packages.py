"""What is made of pip-audit's answers: a vulnerability fails, an unreachable service is said aloud, and neither passes for the other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from audit_packages import CHECKOUT, LOCKS, SERVICES, Audited, audit, report

CLEAN = {"name": "click", "version": "8.5", "vulns": []}
BUGGY = {"name": "jinja2", "version": "3.1.2", "vulns": [{"id": "CVE-2024-22195", "fix_versions": ["3.1.3"]}]}
UNFIXED = {"name": "odd", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": []}]}
SKIPPED = {"name": "local", "skip_reason": "Dependency not found on PyPI"}
UNREACHABLE = "ERROR:pip_audit._cli:Failed to resolve 'pypi.org'"


class Tool:
    """pip-audit with these answers, by service: packages, or words on standard error."""

    def __init__(self, **answers: list[dict[str, Any]] | str) -> None:
        self.answers, self.asked = answers, list[str]()

    def __call__(self, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
        service = options[-1]
        self.asked.append(service)
        answer = self.answers[service]
        if isinstance(answer, str):
            return subprocess.CompletedProcess([], 1, "", answer)
        bad = any(one.get("vulns") for one in answer)
        return subprocess.CompletedProcess([], int(bad), json.dumps({"dependencies": answer, "fixes": []}), "")


def said_by(tool: Tool) -> tuple[int, str]:
    said: list[str] = []
    return report(["a.lock"], tool, said.append), "\n".join(said)


def test_a_lock_without_a_known_vulnerability_says_how_many_packages_and_by_which_service() -> None:
    assert said_by(Tool(pypi=[CLEAN, CLEAN])) == (0, "a.lock: 2 packages, 0 known vulnerabilities (service pypi)")


def test_a_vulnerability_fails_and_is_named_with_the_version_that_mends_it() -> None:
    code, said = said_by(Tool(pypi=[CLEAN, BUGGY, UNFIXED, SKIPPED]))
    assert code == 1 and "3 packages, 2 known vulnerabilities" in said
    assert (
        "jinja2 3.1.2: CVE-2024-22195, mended in 3.1.3" in said and "odd 1: PYSEC-1, mended in no version yet" in said
    )
    assert "not looked at: local: Dependency not found on PyPI" in said


def test_the_next_service_is_asked_where_the_first_is_not_reached() -> None:
    tool = Tool(pypi=UNREACHABLE, osv=[BUGGY])
    found = audit("a.lock", tool)
    assert isinstance(found, Audited) and found.service == "osv" and tool.asked == list(SERVICES)


def test_without_any_service_it_says_aloud_that_nothing_was_audited_and_is_no_failure() -> None:
    code, said = said_by(Tool(pypi=UNREACHABLE, osv=""))
    assert code == 0 and "NOT AUDITED: a.lock" in said and "known vulnerabilities" not in said
    assert UNREACHABLE in said and "osv: exit 1 without a word" in said and "make audit-packages" in said


def test_an_answer_that_looked_at_no_package_is_no_audit() -> None:
    code, said = said_by(Tool(pypi=[], osv=[SKIPPED]))
    assert code == 0 and "NOT AUDITED" in said and "osv: it looked at none of 1 packages" in said


def test_every_lock_is_audited_in_ci_as_the_last_thing() -> None:
    there = [*CHECKOUT.glob("*.lock")]
    for folder in ("engcmp_assets", "engcmp_resources", "protocol", "tests"):
        there += (CHECKOUT / folder).rglob("*.lock")
    assert sorted(LOCKS) == sorted(path.relative_to(CHECKOUT).as_posix() for path in there)
    last = [line for line in (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8").splitlines() if line.strip()][-1]
    assert last.startswith("make audit-packages")
