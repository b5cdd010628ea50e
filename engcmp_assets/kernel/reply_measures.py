"""The measures of long replies, each described once (MEASURES section 7); kernel/measures.py has them with all others."""

from __future__ import annotations

from engcmp_assets.kernel.measure_record import Measure

_OF_REPLIES = "Of the replies that did not fail, which are counted apart."
_GRADED = "Of the replies that were graded: one that was cut, or broke off, is never wrong and is counted apart."

REPLY_MEASURES: tuple[Measure, ...] = (
    Measure(
        "reply_finished", 1, "share of replies", "Finished by itself",
        f"Share of the replies that ended by themselves with text and without a loop on the way. {_OF_REPLIES}", "higher",
    ),
    Measure(
        "reply_capped", 1, "share of replies", "Cut by the cap",
        f"Share of the replies that ran into the most tokens that were asked for, not in a loop. {_OF_REPLIES}",
        "lower",
    ),
    Measure(
        "reply_looped", 1, "share of replies", "Ended in a loop",
        "Share of the replies that did not finish and went round in circles at their end, by the vote of the detectors. "
        f"{_OF_REPLIES}", "lower",
    ),
    Measure(
        "reply_recovered", 1, "share of replies", "Recovered from a loop",
        f"Share of the replies that went through a loop, came out of it and finished. {_OF_REPLIES}", "neither",
    ),
    Measure(
        "reply_tokens", 1, "tokens", "Length of a reply, median",
        "Median of the generated tokens of a reply under its cap. A capped reply counts as longer than any finished one; looped, "
        "stopped-early, failed and empty replies are left out and counted. Missing where half or more are capped.", "neither",
    ),
    Measure(
        "thinking_tokens", 1, "tokens", "Length of the thinking, median",
        "Median of the tokens of a reply's reasoning: complete once the answer has begun, a lower bound where the reply was cut before. "
        "Otherwise as reply_tokens.", "neither",
    ),
    Measure(
        "code_passed", 1, "share of replies", "Code that passes its hidden tests",
        f"Share of the replies whose code passes every hidden test, by value and exact type, in a sandbox. {_GRADED}", "higher",
    ),
    Measure(
        "json_valid", 1, "share of replies", "Valid JSON",
        "Share of the answers that are one strict JSON document of the schema with the number of records that was asked for. "
        f"{_GRADED}", "higher",
    ),
    Measure(
        "json_valid_unfenced", 1, "share of replies", "Valid JSON, one fence removed",
        f"The same after one code fence around the whole answer is taken away. {_GRADED}", "higher",
    ),
    Measure(
        "math_right", 1, "share of replies", "Right number",
        f"Share of the answers whose one declared answer line gives the right value exactly. {_GRADED}", "higher",
    ),
    Measure(
        "needle_found", 1, "share of replies", "Needle found",
        f"Share of the answers that hold the hidden value as a word and no other long number. {_GRADED}", "higher",
    ),
    Measure(
        "tool_points", 1, "points", "Tool calling, points",
        "Points of the built-in scenarios, 2 for a pass, 1 for a partial one and 0 for a fail, of twice the graded scenarios. "
        "The floor is how often a scenario flips between repeats of one build.", "higher",
    ),
    Measure(
        "reply_identical", 1, "share of replies", "Identical replies",
        "Share of the replies of the same prompt and seed that are equal by token ids, else by the hash of their text. Only between "
        "versions of one engine: the one place where replies are paired by seed.", "neither",
    ),
    Measure(
        "reply_repeated", 1, "share of replies", "Identical replies, the same build twice",
        "Share of the replies that one build made twice, of the same prompt and under the same seed, that are equal: the floor of "
        "reply_identical. Of a pair that of the arm that repeats fewer of its own.", "neither",
    ),
    Measure(
        "length_ratio", 1, "ratio", "Length of replies",
        "Median length of the candidate's replies over the baseline's, from a joint log-normal fit that knows the cap; where no reply was "
        "capped the geometric mean over prompts. Given only if at most 30 % of either arm's replies are capped.", "neither",
    ),
    Measure(
        "thinking_ratio", 1, "ratio", "Length of the thinking",
        "As length_ratio, of the reasoning alone.", "neither",
    ),
)  # fmt: skip

REPLY_IDS: frozenset[str] = frozenset(one.id for one in REPLY_MEASURES)
SHARES = ("reply_finished", "reply_capped", "reply_looped", "reply_recovered")
"""How replies ended; `reply_stopped_early`, failed and empty ones are counted beside them."""
TEST_OF = {
    "reply_capped": "capped", "reply_looped": "looped", "length_ratio": "longer", "thinking_ratio": "thinks_longer",
    "code_passed": "passed", "json_valid": "json_valid", "math_right": "passed", "needle_found": "passed",
}  # fmt: skip
"""The exact test by prompt that decides a difference of each measure between two arms."""
PASSED_OF = {"code": "code_passed", "json": "json_valid", "math": "math_right", "needle": "needle_found"}
"""The measure of each check whose verdict is yes or no."""
