"""Every request that a study sends of its speed block, before any is sent: digests, seed, first line, and what each arm must count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.throughput_events.plan import Index, PlannedCell, PlannedRequest, Texts, frozen_ids


def planned_requests(index: Index, texts: Texts, arms: Sequence[ArmKey]) -> list[dict[str, Any]]:
    """One entry for each request of each repeat, in the order in which every arm of `arms` is sent them; untimed ones have `timed` false.

    `first_line` are the ids of the line that no other prompt has (the nonce). `expected_prompt_tokens` is by arm what its engine must
    count: as token ids a prompt has that many, and a chat is cut so that the template's tokens and its own are as many together.
    Raises EngcmpError naming the first prompt whose ids are not the frozen ones.
    """
    return [
        _entry(cell, one, texts, arms, index.output_tokens, is_timed=is_timed)
        for cell in index.cells
        for is_timed, requests in ((False, cell.warmup), (True, cell.requests))
        for one in requests
    ]


def _entry(
    cell: PlannedCell, one: PlannedRequest, texts: Texts, arms: Sequence[ArmKey], output_tokens: int, *, is_timed: bool
) -> dict[str, Any]:
    ids = frozen_ids(one, texts[cell.kind], cell.prompt_tokens)
    pace = {"rate_per_s": cell.rate_per_s} if cell.rate_per_s is not None else {"concurrency": cell.concurrency}
    return {
        "cell_id": cell.cell_id,
        "repeat": cell.repeat,
        "request_id": one.request_id,
        "timed": is_timed,
        **pace,
        "prompt_sha256": one.tokens_sha256,
        **({"chat_sha256": one.chat.text_sha256} if one.chat else {}),
        "first_line": one.first_line,
        "expected_prompt_tokens": {str(arm): len(ids) for arm in arms},
        "seed": one.seed,
        "max_tokens": output_tokens,
    }
