"""`engcmp replies` on long replies: seconds, and the most memory that the process held.

Half of the replies are capped in a loop, a quarter are healthy and capped, a quarter have finished: all detectors work on every class.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

_TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_TESTS))

from replies_corpus.corpus import HEALTHY, LOOPS

from engcmp_resources.reply_files import ReplyTokenizer

_CHARS_PER_TOKEN = 6  # more than any class has: what is beyond `tokens` is cut
_PROCESS = """
import resource, sys
from engcmp_assets.commands.main import main
try:
    main(sys.argv[1:])
finally:
    print("peak_kib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def write_replies(path: Path, tokenizer: ReplyTokenizer, count: int, tokens: int) -> int:
    """A file of `count` replies of about `tokens` tokens each; the tokens of all."""
    healthy, total = list(HEALTHY.items()), 0
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            chance = Random(number)
            write = LOOPS[number // 2 % len(LOOPS)] if number % 2 else healthy[number // 2 % len(healthy)][1]
            text = write(chance, tokens * _CHARS_PER_TOKEN).text
            if len(text) < tokens:  # a song that ends: prose instead
                text = dict(healthy)["prose"](chance, tokens * _CHARS_PER_TOKEN).text
            ids = tokenizer.encode(text)[:tokens]
            total += len(ids)
            line = {
                "reply_id": f"r{number}", "kind": "reasoning", "reasoning": tokenizer.decode(ids[: len(ids) // 4]),
                "answer": tokenizer.decode(ids[len(ids) // 4 :]), "finish_reason": "stop" if number % 4 == 0 else "length",
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")
    return total


def measure(tokenizer_place: Path, count: int, tokens: int, jobs: int) -> None:
    """Time the command once, in a process of its own, and print a line."""
    with tempfile.TemporaryDirectory() as folder:
        replies = Path(folder) / "replies.jsonl"
        total = write_replies(replies, ReplyTokenizer.load(tokenizer_place), count, tokens)
        command = [
            sys.executable, "-c", _PROCESS, "replies", str(replies), "--tokenizer", str(tokenizer_place),
            "--out", str(Path(folder) / "out.json"), "--jobs", str(jobs), "--json",
        ]  # fmt: skip
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(done.stderr)
    summary = json.loads(done.stdout)
    peak_mib = int(done.stderr.split("peak_kib")[1]) / 1024
    processor_s = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{count} replies, {total:,} tokens, {jobs} threads: {seconds:.1f} s ({processor_s.ru_utime + processor_s.ru_stime:.1f} s of "
        f"processors), peak {peak_mib:,.0f} MiB; finish {summary['finish']}, {summary['looped']} looped"
    )


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: bench_replies.py --tokenizer models/smollm2 --replies 128"
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json, or a GGUF file")
    parser.add_argument("--replies", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=131_072, help="of each reply")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    measure(arguments.tokenizer, arguments.replies, arguments.tokens, arguments.jobs)


if __name__ == "__main__":
    main()
