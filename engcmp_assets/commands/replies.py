"""`engcmp replies`: how long replies ended, and which of them went round in circles. It needs no study and no Dagster instance."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.kernel.progress import Progress, stderr_line
from engcmp_assets.kernel.records import plain
from engcmp_assets.kernel.replies.finishes import finish_of
from engcmp_assets.kernel.replies.hits import ON_REPORTING_SEEDS, vote_text
from engcmp_assets.kernel.replies.loops import UNFINISHED, ReplyVerdict, least_judged
from engcmp_assets.kernel.replies.spans import KINDS, Thresholds
from engcmp_assets.long_output_checks.judging import ReplyJudge, Said
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.reply_files import ReplyTokenizer, read_probes, read_replies
from engcmp_resources.threads import in_order

_NAMED = 20  # replies that the summary names


@click.command(epilog="Example: engcmp replies REPLIES.jsonl --tokenizer models/smollm2 --out loops.json")
@click.argument("replies_file", metavar="REPLIES.jsonl", type=PathArgument())
@click.option(
    "--tokenizer", "tokenizer_place", required=True, type=PathArgument(),
    help="Folder with the model's tokenizer.json, or its GGUF file.",
)  # fmt: skip
@click.option(
    "--out",
    required=True,
    type=PathArgument(),
    help="File for the verdicts, JSON; written whole at the end.",
)
@click.option(
    "--probes", "probes_file", type=PathArgument(),
    help='JSON {"text": [ids]} with ids as the engine gives them: a tokenizer that gives others is refused.',
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Threads; by default one for each processor.")
@click.option(
    "--json", "as_json", is_flag=True, help="For machines: the summary as one JSON object on standard output."
)
def replies(  # noqa: PLR0917 - click calls it by name
    replies_file: Path, tokenizer_place: Path, out: Path, probes_file: Path | None, jobs: int | None, as_json: bool
) -> None:
    """Judge replies: how each ended, whether it was in a loop, and from which token on.

    A line of REPLIES.jsonl is {"reply_id", "kind", "reasoning", "answer", "finish_reason"}; kinds are code, json, prose and reasoning,
    and "reasoning" may be left out. Measures are of the span in which the reply ended; onset_token counts within the span of the loop.
    A finished reply that went through a loop is `recovered`. A span below 249 tokens is judged by exact copies alone: `judged` is false.
    """
    _refuse_place(out, replies_file)
    count = sum(1 for _ in _checked(replies_file))  # every line, before any is judged
    tokenizer = ReplyTokenizer.load(tokenizer_place)
    if probes_file is not None:
        tokenizer.require(read_probes(probes_file), str(probes_file))
    limits = Thresholds()
    judge = ReplyJudge(tokenizer, limits)
    progress = Progress(stderr_line, f"replies {replies_file.name}", "replies", count, time.monotonic_ns)
    verdicts: list[ReplyVerdict] = []
    control: list[str] = []

    def one(said: Said) -> tuple[ReplyVerdict, list[str]]:
        return judge.verdict(said), judge.control_tokens(said)

    for verdict, names in in_order(_checked(replies_file), one, jobs or os.cpu_count() or 1):
        verdicts.append(verdict)
        control += [verdict.reply_id] if names else []
        progress.update(len(verdicts), verdict.reply_id)
    replace_visible(out, canonical_bytes({"replies": [entry(one) for one in verdicts]}))
    summary = summarised(verdicts, control) | {
        "detectors_on_the_labelled_corpus": plain(ON_REPORTING_SEEDS), "thresholds": asdict(limits), "out": str(out),
    }  # fmt: skip
    click.echo(json.dumps(summary, indent=1) if as_json else summary_text(summary))


def entry(one: ReplyVerdict) -> dict[str, Any]:
    """A reply's verdict as it is written; what could not be measured is {"missing": reason}."""
    return {
        "reply_id": one.reply_id,
        "finish": one.finish,
        "looped": one.looped,
        "detector": one.loop.detector if one.loop else None,
        "onset_token": one.loop.onset_token if one.loop else None,
        "self_repetition": plain(one.measured.repetition.share),
        "restated": plain(one.restated),
        "novelty8": plain(one.measured.novelty.share),
        "compression": plain(one.measured.compression),
        "reasoning_tokens": one.reasoning_tokens,
        "reasoning_chars": one.reasoning_chars,
        "answer_tokens": one.answer_tokens,
        "answer_chars": one.answer_chars,
        "judged": one.judged,
    }


def summarised(verdicts: Sequence[ReplyVerdict], control: Sequence[str]) -> dict[str, Any]:
    """Counts over all replies, and the loops with the evidence that the output file has no key for."""
    return {
        "replies": len(verdicts),
        "finish": dict(sorted(Counter(one.finish for one in verdicts).items())),
        "looped": sum(one.looped for one in verdicts),
        "too_short_to_judge": sum(not one.judged for one in verdicts),
        "with_control_tokens_as_text": list(control),
        "loops": [
            {
                "reply_id": one.reply_id, "finish": one.finish, "span": one.loop_span, "detector": one.loop.detector,
                "onset_token": one.loop.onset_token, "period": plain(one.loop.period),
                "templated_lines": plain(one.measured.templated_lines), "structure": one.measured.structure,
            }
            for one in verdicts if one.loop is not None
        ],
    }  # fmt: skip


def summary_text(summary: dict[str, Any]) -> str:
    """The summary for a reader."""
    ends = ", ".join(f"{count} {name}" for name, count in summary["finish"].items())
    unfinished = sum(summary["finish"].get(name, 0) for name in UNFINISHED)
    lines = [
        vote_text(ON_REPORTING_SEEDS),
        f"{summary['replies']} replies, each counted once by how it ended: {ends}",
        f"{summary['looped']} of the {unfinished} that did not finish by themselves ended in a loop",
    ]
    if short := summary["too_short_to_judge"]:
        least = least_judged(Thresholds())
        lines.append(
            f"{short} too short to judge: in a last span of fewer than {least} tokens only exact copies can be told"
        )
    for loop in summary["loops"][:_NAMED]:
        period = loop["period"]
        unit = f", a unit of {period['tokens']} tokens, {period['dropped']} final tokens dropped" if period else ""
        lines.append(
            f"  {loop['reply_id']}: {loop['finish']}, {loop['detector']} in the {loop['span']} from token {loop['onset_token']:,}{unit}"
        )
    if len(summary["loops"]) > _NAMED:
        lines.append(f"  and {len(summary['loops']) - _NAMED} more, in the file")
    if summary["with_control_tokens_as_text"]:
        names = summary["with_control_tokens_as_text"]
        lines.append(
            f"{len(names)} with the name of a control token in the text, counted as text: {', '.join(names[:_NAMED])}"
        )
    return "\n".join([*lines, f"written: {summary['out']}"])


def _refuse_place(out: Path, replies_file: Path) -> None:
    """What cannot be written is refused before the work."""
    parent = next(path for path in out.absolute().parents if path.exists())
    if out.is_dir() or not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise EngcmpError(
            "verdicts cannot be written there", where=str(out), remedy="name a file in a folder that you may write in"
        )
    if out.exists() and replies_file.exists() and out.samefile(replies_file):
        raise EngcmpError("--out is the file of the replies", where=str(out), remedy="name another file")
    if replies_file.exists() and not replies_file.is_file():
        raise EngcmpError(
            "not a file: the replies are read twice", where=str(replies_file), remedy="write them into a file"
        )


def _checked(path: Path) -> Iterator[Said]:
    """The replies, each of a known kind and with a known end."""
    for line in read_replies(path):
        where = f"{path}, line {line.line}"
        if line.kind not in KINDS:
            raise EngcmpError(
                f"unknown kind {line.kind[:60]!r}", where=where, remedy=f"write one of {', '.join(KINDS)}"
            )
        try:
            finish_of(line.finish_reason, has_text=True)
        except EngcmpError as error:
            raise EngcmpError(error.what, where=where, remedy=error.remedy) from error
        yield Said(line.reply_id, line.kind, line.reasoning, line.answer, line.finish_reason)
