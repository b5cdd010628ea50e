"""verdicts.parquet: what goes in comes out, and where two replies part is known from digests to the block."""

from dataclasses import replace

from planted_replies import verdict, with_ids

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.reply_verdicts import (
    VERDICT_COLUMNS,
    first_difference_within,
    population_of,
    prefix_digests,
    verdict_table,
    verdicts_of,
)
from engcmp_assets.kernel.tables import parquet_bytes, parquet_columns


def test_verdicts_read_back_as_they_were_written() -> None:
    full = replace(
        with_ids(verdict("p1", "looped"), [1, 2, 3]), onset_token=17, loop_span="answer", self_repetition=0.5, novelty8=0.0, score=1.0,
        check="code", passed="yes", outcome="passed", control_tokens=2, structure="json", reason="a reason",
    )  # fmt: skip
    bare = verdict("p2", "error", n_tokens=None, reasoning_tokens=None, answer_tokens=None)
    for every in ([full, bare], [bare], [full], []):
        data = parquet_bytes(VERDICT_COLUMNS, verdict_table(every))
        assert verdicts_of({name: column.tolist() for name, column in parquet_columns(data).items()}) == every
        assert data == parquet_bytes(VERDICT_COLUMNS, verdict_table(every))


def test_the_block_in_which_two_replies_part_is_known_from_their_digests() -> None:
    first = list(range(300))
    for place in (0, 63, 64, 150, 299):
        other = [*first[:place], 9999, *first[place + 1 :]]
        assert first_difference_within(prefix_digests(first), prefix_digests(other)) == (
            place // 64 * 64,
            place // 64 * 64 + 64,
        )
    longer = [*first, 7]
    assert first_difference_within(prefix_digests(first), prefix_digests(longer)) == (256, 320)
    assert first_difference_within(prefix_digests(first[:256]), prefix_digests(first)) == (256, 320)
    assert isinstance(first_difference_within(prefix_digests(first), prefix_digests(first)), Missing)
    assert isinstance(first_difference_within(None, prefix_digests(first)), Missing)
    assert prefix_digests(None) is None and prefix_digests([]) == ""


def test_a_population_is_named_without_saying_a_word_twice() -> None:
    assert population_of("long", "L1", "code") == "long-L1-code"
    assert population_of("code", "code", "code") == "code"
    assert population_of("math", "math", "reasoning") == "math-reasoning"
    assert population_of("tools", "tools-c8", "prose") == "tools-c8-prose"
