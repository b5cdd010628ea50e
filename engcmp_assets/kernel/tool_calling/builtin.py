"""The twelve built-in scenarios, in two halves; VERSION changes whenever a text, a tool, a value or the grader does."""

from __future__ import annotations

from engcmp_assets.kernel.tool_calling.builtin_acting import ACTING
from engcmp_assets.kernel.tool_calling.builtin_reading import READING
from engcmp_assets.kernel.tool_calling.scenarios import Scenario

SUITE, VERSION = "engcmp-built-in", "1"
SYSTEM = (
    "You work for a user through the tools given. Use a tool for every fact that you were not told, and do only what the user asks. "
    "Write codes and numbers exactly as the tools give them. If a tool fails, say so; never guess what it would have said."
)
SCENARIOS: tuple[Scenario, ...] = READING + ACTING
