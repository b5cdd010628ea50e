"""Hits and false flags of each detector and of the vote on the labelled corpus, as text or JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engcmp_assets.kernel.records import plain
from engcmp_assets.kernel.replies.hits import Case, CorpusHits, count_hits, hits_text
from engcmp_assets.kernel.replies.loops import SpanJudge, judge
from engcmp_assets.kernel.replies.spans import Reply, Thresholds, Vocabulary, vocabulary
from engcmp_assets.long_output_checks.judging import span_of
from engcmp_resources.reply_files import ReplyTokenizer
from replies_corpus.corpus import REPORTING, TUNING, Labelled, corpus


def reply_of(one: Labelled, tokenizer: ReplyTokenizer) -> Reply:
    """A labelled reply with its token ids."""
    spans = span_of(tokenizer, "reasoning", one.reasoning), span_of(tokenizer, "answer", one.answer)
    return Reply(one.name, one.kind, one.finish_reason, *spans)


def case_of(one: Labelled, tokenizer: ReplyTokenizer, known: Vocabulary) -> Case:
    """What is found in a labelled reply."""
    reply = reply_of(one, tokenizer)
    verdict = judge(reply, known)
    fired = SpanJudge(known, Thresholds()).fired(reply.last, reply.kind, verdict.measured)
    within = [verdict.loop.detector] if verdict.loop is not None and verdict.loop.detector not in fired else []
    return Case(one.name, one.looped, fired + within, verdict.looped or verdict.finish == "recovered")


def cases(tokenizer: ReplyTokenizer, seeds: tuple[int, ...]) -> Iterator[Case]:
    """Every case of the corpus with these seeds, in its order."""
    known = vocabulary(tokenizer.token_texts())
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        yield from pool.map(lambda one: case_of(one, tokenizer, known), corpus(seeds))


def report(tokenizer: ReplyTokenizer, seeds: tuple[int, ...]) -> CorpusHits:
    """The table of these seeds."""
    return count_hits(cases(tokenizer, seeds))


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: report.py --tokenizer models/smollm2 --seeds reporting"
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json, or a GGUF file")
    parser.add_argument("--seeds", choices=["tuning", "reporting"], default="reporting")
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    found = report(ReplyTokenizer.load(arguments.tokenizer), TUNING if arguments.seeds == "tuning" else REPORTING)
    missed = "\n".join(f"  missed by the vote: {name}" for name in found.missed)
    print(json.dumps(plain(found), indent=1) if arguments.as_json else f"{hits_text(found)}\n{missed}".rstrip())


if __name__ == "__main__":
    main()
