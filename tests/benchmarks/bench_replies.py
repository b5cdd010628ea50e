"""`engcmp replies` on long replies: seconds, the most memory that the process held, loops that it found and healthy replies it flagged.

Half of the replies are capped in a loop, a quarter are healthy and capped, a quarter have finished: all detectors work on every class.
A loop is written to the length of its answer in tokens, so that the answer holds it: cut short it would be what stands before the loop.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

_TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_TESTS))

from replies_corpus.corpus import HEALTHY, LOOPS, Write

from engcmp_resources.reply_files import ReplyTokenizer

_CHARS_PER_TOKEN = 6  # the first guess; what is beyond the tokens that are wanted is cut
_CLOSE = (
    1.1  # times as many tokens as are wanted, at most: a class writes a share of what it is asked for before it loops
)
_GUESSES = 8
_REASONING = 4  # a part of so many of the tokens
_LEAST_FOUND = 0.95
_PROCESS = """
import resource, sys
from engcmp_assets.commands.main import main
try:
    main(sys.argv[1:])
finally:
    print("peak_kib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: tokens of all replies, and each reply's class by its id, loops and healthy ones apart."""

    tokens: int
    loops: dict[str, str]
    healthy: dict[str, str]


def write_replies(path: Path, tokenizer: ReplyTokenizer, count: int, tokens: int) -> Written:
    """A file of `count` replies of about `tokens` tokens each: prose as the reasoning, the class's text as the answer."""
    prose, healthy, written = HEALTHY["prose"], list(HEALTHY.items()), Written(0, {}, {})
    total, thought = 0, tokens // _REASONING
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            write = LOOPS[number // 2 % len(LOOPS)] if number % 2 else healthy[number // 2 % len(healthy)][1]
            kind, answer = _answer(write, number, tokenizer, tokens - thought)
            if len(answer) < tokens - thought and not number % 2:  # a song that ends: prose instead
                kind, answer = _answer(prose, number, tokenizer, tokens - thought)
            _, reasoning = _answer(prose, count + number, tokenizer, thought)
            total += len(answer) + len(reasoning)
            (written.loops if number % 2 else written.healthy)[f"r{number}"] = write.__name__
            line = {
                "reply_id": f"r{number}", "kind": kind, "reasoning": tokenizer.decode(reasoning), "answer": tokenizer.decode(answer),
                "finish_reason": "stop" if number % 4 == 0 else "length",
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")
    return Written(total, written.loops, written.healthy)


def _answer(write: Write, seed: int, tokenizer: ReplyTokenizer, tokens: int) -> tuple[str, list[int]]:
    """The kind of a text of a class and its first `tokens` token ids, the text written for as many characters as give those."""
    chars = tokens * _CHARS_PER_TOKEN
    for _ in range(_GUESSES):
        made = write(Random(seed), chars)
        ids = tokenizer.encode(made.text[:chars])
        if len(ids) <= tokens * _CLOSE:
            break
        chars = int(chars * tokens * (1 + _CLOSE) / 2 / len(ids))
    return made.kind, ids[:tokens]


def measure(tokenizer_place: Path, count: int, tokens: int, jobs: int) -> float:
    """Time the command once, in a process of its own, and print two lines. The share of loops found; 0 if a healthy reply was flagged."""
    with tempfile.TemporaryDirectory() as folder:
        replies, out = Path(folder) / "replies.jsonl", Path(folder) / "out.json"
        written = write_replies(replies, ReplyTokenizer.load(tokenizer_place), count, tokens)
        command = [
            sys.executable, "-c", _PROCESS, "replies", str(replies), "--tokenizer", str(tokenizer_place),
            "--out", str(out), "--jobs", str(jobs), "--json",
        ]  # fmt: skip
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
        if done.returncode:
            sys.exit(done.stderr)
        verdicts = {one["reply_id"]: one for one in json.loads(out.read_bytes())["replies"]}
    summary = json.loads(done.stdout)
    peak_mib = int(done.stderr.split("peak_kib")[1]) / 1024
    processor_s = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{count} replies, {written.tokens:,} tokens, {jobs} threads: {seconds:.1f} s ({processor_s.ru_utime + processor_s.ru_stime:.1f} s "
        f"of processors), peak {peak_mib:,.0f} MiB; finish {summary['finish']}"
    )
    missed = [f"{name} ({one})" for one, name in written.loops.items() if not verdicts[one]["looped"]]
    false = [
        f"{name} ({one})" for one, name in written.healthy.items()
        if verdicts[one]["looped"] or verdicts[one]["finish"] == "recovered"
    ]  # fmt: skip
    found = len(written.loops) - len(missed)
    print(
        f"{found} of {len(written.loops)} loops found{': missed ' if missed else ''}{', '.join(missed)}; "
        f"{len(false)} of {len(written.healthy)} healthy replies flagged{': ' if false else ''}{', '.join(false)}"
    )
    return 0.0 if false else found / max(1, len(written.loops))


def main() -> None:
    """Read the arguments and measure; exit 1 where fewer than 95 % of the loops were found, or a healthy reply was flagged."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: bench_replies.py --tokenizer models/smollm2 --replies 128"
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json, or a GGUF file")
    parser.add_argument("--replies", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=131_072, help="of each reply")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    found = measure(arguments.tokenizer, arguments.replies, arguments.tokens, arguments.jobs)
    sys.exit(0 if found >= _LEAST_FOUND else 1)


if __name__ == "__main__":
    main()
