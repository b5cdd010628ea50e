"""Long replies of two arms under one cap: how they ended, what they passed, how long and whether the same they are (MEASURES section 7).

Arms are paired by prompt and never by seed; only the identity of replies pairs seeds, and only between versions of one engine.
A test is descriptive unless it was declared before the run. A check that did not grade a reply (a capped one is never wrong) is Missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engcmp_assets.kernel.records import ArmKey, Missing
from engcmp_assets.kernel.reply_lengths.censored_fit import LENGTHS
from engcmp_assets.kernel.reply_lengths.comparing import LengthComparison, compare_lengths
from engcmp_assets.kernel.reply_lengths.paired import SignTest, sign_test
from engcmp_assets.kernel.reply_lengths.records import ReplyLength, reply_length, thinking_length
from engcmp_assets.kernel.reply_verdicts import first_difference_within
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

Span = Literal["reasoning", "answer"]
TESTS = ("capped", "looped", "longer", "thinks_longer", "passed", "json_valid")
_NO_BLOCK = Missing("no digest of a block is known")
_NOT_JUDGED = Missing("no check applies to this prompt")


@dataclass(frozen=True, slots=True)
class ReplyFacts:
    """What is known of one reply, without its text. `finish` is a finish class, `looped` the vote, `ended_in` the span that it ended in.

    `tokens` are of the whole reply, `reasoning_tokens` of its thinking (None where thinking was off). `passed` and `json_valid` are the
    checks' verdicts, Missing where none applies or the reply was not graded. Of the engine's ids, where it gives them, either `token_ids`
    holds all, or `ids_sha256` and `prefix_digests` (see reply_verdicts) tell whether two replies are the same and in which block they part.
    """

    prompt_id: str
    seed: int
    finish: str
    looped: bool
    ended_in: Span
    tokens: int
    reasoning_tokens: int | None
    text_sha256: str
    token_ids: tuple[int, ...] | None = None
    ids_sha256: str | None = None
    prefix_digests: str | None = None
    passed: bool | Missing = _NOT_JUDGED
    json_valid: bool | Missing = _NOT_JUDGED

    @property
    def length(self) -> ReplyLength:
        return reply_length(self.prompt_id, self.tokens, self.finish, looped=self.looped)

    @property
    def word(self) -> str:
        """One word for how it ended: `recovered` and `looped` are told apart from finished and capped."""
        return "recovered" if self.finish == "recovered" else self.length.ending


@dataclass(frozen=True, slots=True)
class ArmReplies:
    """How an arm's replies ended, in disjoint counts by word, and how many of the graded ones passed and were valid JSON."""

    replies: int
    endings: Mapping[str, int]
    passed: int
    passed_graded: int
    json_valid: int
    json_graded: int


@dataclass(frozen=True, slots=True)
class NamedTest:
    """An exact paired test by prompt, and whether it was declared before the run."""

    name: str
    test: SignTest
    standing: Literal["declared", "descriptive"]


@dataclass(frozen=True, slots=True)
class RepliesUnderCap:
    """Both arms under one cap in tokens. `ungraded_pairs` counts, by check, the prompts left out because a reply was not graded."""

    cap: int
    baseline: ArmReplies
    candidate: ArmReplies
    tests: tuple[NamedTest, ...]
    ungraded_pairs: Mapping[str, int]
    lengths: LengthComparison
    thinking: LengthComparison | Missing


@dataclass(frozen=True, slots=True)
class Divergence:
    """Two replies of one prompt and seed that differ: the first token that does, 0 for the first, Missing where it is not known.

    `within` are the tokens between which it lies, the second one excluded, where only digests of blocks are known.
    """

    prompt_id: str
    seed: int
    first_token: int | Missing
    within: tuple[int, int] | Missing = _NO_BLOCK


@dataclass(frozen=True, slots=True)
class ReplyIdentity:
    """`reply_identical` between two versions of one engine: identical of compared pairs; `by_digest` of them were compared by
    the digest of their text, for want of token ids.

    `unpaired` replies have no partner of the same prompt and seed; `broken` pairs hold a reply that failed.
    """

    identical: int
    compared: int
    by_digest: int
    unpaired: int
    broken: int
    divergences: tuple[Divergence, ...]

    def __str__(self) -> str:
        return f"{self.identical} of {self.compared} identical"


def compare_replies(
    baseline: Sequence[ReplyFacts],
    candidate: Sequence[ReplyFacts],
    cap: int,
    *,
    declared: Collection[str] = (),
    preset: Preset = LENGTHS,
) -> RepliesUnderCap:
    """Both arms' replies under one `cap`. `declared` names the tests (of TESTS) that were declared before the run.

    Raises EngcmpError for a declared test that does not exist, a prompt and seed twice in one arm, and lengths that `pair_up` refuses.
    """
    unknown = sorted(set(declared) - set(TESTS))
    if unknown:
        raise EngcmpError(f"{unknown[0]!r} is no test of replies", remedy=f"declare some of {', '.join(TESTS)}")
    for arm in (baseline, candidate):
        _by_seed(arm)
    lengths = compare_lengths([one.length for one in baseline], [one.length for one in candidate], cap, preset=preset)
    thinking = _thinking(baseline, candidate, cap, preset)
    looped, _ = _paired(
        baseline, candidate, lambda one: Missing(one.word) if one.word in ("error", "empty") else one.looped
    )
    passed, passed_out = _paired(baseline, candidate, lambda one: one.passed)
    valid, valid_out = _paired(baseline, candidate, lambda one: one.json_valid)
    found = {
        "capped": lengths.main.capped,
        "looped": looped,
        "longer": lengths.main.longer,
        "passed": passed,
        "json_valid": valid,
    }
    if not isinstance(thinking, Missing):
        found["thinks_longer"] = thinking.main.longer
    tests = tuple(
        NamedTest(name, found[name], "declared" if name in declared else "descriptive")
        for name in TESTS
        if name in found
    )
    ungraded = {"passed": passed_out, "json_valid": valid_out}
    return RepliesUnderCap(cap, _counted(baseline), _counted(candidate), tests, ungraded, lengths, thinking)


def reply_identity(
    baseline: ArmKey, candidate: ArmKey, first: Sequence[ReplyFacts], second: Sequence[ReplyFacts]
) -> ReplyIdentity | Missing:
    """Replies of the same prompt and seed, by token ids where both have them, else by the digest of the text.

    Missing between engines, checkpoints or settings: there the same seed draws other tokens. Raises EngcmpError for a pair that repeats.
    """
    if (baseline.checkpoint, baseline.engine, baseline.setting) != (
        candidate.checkpoint,
        candidate.engine,
        candidate.setting,
    ):
        return Missing("replies are paired by seed only between versions of one engine, on one checkpoint and setting")
    one, other = _by_seed(first), _by_seed(second)
    both = sorted(one.keys() & other.keys())
    kept = [key for key in both if "error" not in (one[key].finish, other[key].finish)]
    divergences, by_digest = [], 0
    for key in kept:
        pair = (one[key], other[key])
        same, by_ids = _same(*pair)
        by_digest += not by_ids
        if not same:
            first_token = _first_difference(pair[0].token_ids, pair[1].token_ids)
            within = first_difference_within(pair[0].prefix_digests, pair[1].prefix_digests)
            divergences.append(Divergence(*key, first_token, within))
    return ReplyIdentity(
        identical=len(kept) - len(divergences),
        compared=len(kept),
        by_digest=by_digest,
        unpaired=len(one) + len(other) - 2 * len(both),
        broken=len(both) - len(kept),
        divergences=tuple(divergences),
    )


def _same(first: ReplyFacts, second: ReplyFacts) -> tuple[bool, bool]:
    """Whether two replies are equal, and whether their token ids say so; else the digests of their texts do."""
    if first.token_ids is not None and second.token_ids is not None:
        return first.token_ids == second.token_ids, True
    if first.ids_sha256 is not None and second.ids_sha256 is not None:
        return first.ids_sha256 == second.ids_sha256, True
    return first.text_sha256 == second.text_sha256, False


def _first_difference(first: tuple[int, ...] | None, second: tuple[int, ...] | None) -> int | Missing:
    """A reply that goes on where the other ends differs at the token after that end."""
    if first is None or second is None:
        return Missing("token ids are not known of both replies")
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _by_seed(replies: Sequence[ReplyFacts]) -> dict[tuple[str, int], ReplyFacts]:
    found = {(one.prompt_id, one.seed): one for one in replies}
    if len(found) != len(replies):
        (prompt_id, seed), times = Counter((one.prompt_id, one.seed) for one in replies).most_common(1)[0]
        raise EngcmpError(
            f"prompt {prompt_id}, seed {seed}: {times} replies under one cap",
            remedy="give one reply to a prompt and seed",
        )
    return found


def _counted(replies: Sequence[ReplyFacts]) -> ArmReplies:
    passed = [one.passed for one in replies if not isinstance(one.passed, Missing)]
    valid = [one.json_valid for one in replies if not isinstance(one.json_valid, Missing)]
    return ArmReplies(
        len(replies),
        dict(sorted(Counter(one.word for one in replies).items())),
        sum(passed),
        len(passed),
        sum(valid),
        len(valid),
    )


def _thinking(
    baseline: Sequence[ReplyFacts], candidate: Sequence[ReplyFacts], cap: int, preset: Preset
) -> LengthComparison | Missing:
    first, second = (
        [
            thinking_length(one.prompt_id, one.reasoning_tokens, one.finish, looped=one.looped, ended_in=one.ended_in)
            for one in arm
            if one.reasoning_tokens is not None
        ]
        for arm in (baseline, candidate)
    )
    if not first or not second:
        return Missing("an arm has no reply with thinking")
    return compare_lengths(first, second, cap, preset=preset)


def _paired(
    baseline: Sequence[ReplyFacts], candidate: Sequence[ReplyFacts], verdict: Callable[[ReplyFacts], bool | Missing]
) -> tuple[SignTest, int]:
    """McNemar's exact test by prompt on the replies that have a verdict, as many of each arm; and how many prompts have no such pair."""
    sides: list[dict[str, list[bool]]] = []
    for arm in (baseline, candidate):
        found: dict[str, list[bool]] = defaultdict(list)
        for one in arm:
            value = verdict(one)
            if not isinstance(value, Missing):
                found[one.prompt_id].append(value)
        sides.append(found)
    prompts = {one.prompt_id for one in baseline} & {one.prompt_id for one in candidate}
    signs = []
    for name in sorted(prompts):
        first, second = (side.get(name, []) for side in sides)
        size = min(len(first), len(second))
        if size:
            change = sum(second[:size]) - sum(first[:size])
            signs.append((change > 0) - (change < 0))
    return sign_test(signs), len(prompts) - len(signs)
