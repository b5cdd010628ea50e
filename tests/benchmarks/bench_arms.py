"""What the n-th arm costs: a study of 4, 16 and 64 arms whose results are there, and one arm more, measured for real.

The seconds of the new arm's own assets must not grow with n, and no pair that was compared before may be compared again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from growing import PROBES, WIDE, GrowingStudy, Growth, home_argument, print_table, temporary_root


def measure(study: GrowingStudy, sizes: Sequence[int]) -> list[Growth]:
    """Grow the study through `sizes` (at most as many as there are probing arms), one probing arm beyond each."""
    grown = []
    with study.in_place():
        for size, arm in zip(sizes, PROBES, strict=False):
            study.fill(size)
            study.results()
            grown.append(study.grow(arm))
    return grown


def show(grown: Sequence[Growth]) -> None:
    """The whole as a table, then the new arm's steps."""
    print_table(
        (
            "arms before", "own assets s", "own CPU s", *(f"{name} s" for name in WIDE), "results CPU s", "pairs made",
            "pairs kept",
        ),
        [
            (
                str(one.arms_before), f"{one.own_seconds:.2f}", f"{one.own_cpu_s:.2f}", *(f"{one.wide_seconds(name):.2f}" for name in WIDE),
                f"{one.wide_cpu_s:.2f}", str(one.pairs_made), str(one.pairs_kept),
            )
            for one in grown
        ],
    )  # fmt: skip
    steps = [one.step for one in grown[0].own]
    print_table(
        ("seconds of the new arm's steps", *(f"arm {one.arms_before + 1}" for one in grown)),
        [
            (step, *(f"{next(ran.seconds for ran in one.own if ran.step == step):.2f}" for one in grown))
            for step in steps
        ],
    )
    print_table(
        ("artifacts of the new arm", *(f"arm {one.arms_before + 1}" for one in grown)),
        [
            ("made", *(str(sum(len(ran.made) for ran in one.own)) for one in grown)),
            ("answered from the store", *(str(sum(len(ran.answered) for ran in one.own)) for one in grown)),
        ],
    )
    for one in grown:
        made = [name for ran in (*one.own, *one.wide) for name in ran.made]
        print(f"made with arm {one.arms_before + 1}: {', '.join(made)}")


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: bench_arms.py --sizes 4 16")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 16, 64], help="Arms before the new one, rising.")
    home_argument(parser)
    arguments = parser.parse_args()
    with temporary_root(arguments.home) as root:
        show(measure(GrowingStudy(root, arguments.home), arguments.sizes))


if __name__ == "__main__":
    main()
