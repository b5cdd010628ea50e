"""The table of findings: each names something that exists."""

import importlib
import re

from engcmp_assets.kernel import review

PLACES = re.compile(r"`((?:kernel\.|comparisons\.)?[a-z_]+)(?:\.([a-zA-Z_]+))?`")
ROOTS = {"kernel": "engcmp_assets.kernel", "comparisons": "engcmp_assets.comparisons"}


def test_what_finds_each_mistake_exists():
    rows = [line.split("|")[2] for line in review.__doc__.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20
    checked = set()
    for row in rows:
        for first, second in PLACES.findall(row):
            room, _, module = first.partition(".")
            if module:
                found = importlib.import_module(f"{ROOTS[room]}.{module}")
            elif second and first != "Comparison":
                found = importlib.import_module(f"engcmp_assets.kernel.review.{first}")
            else:
                continue
            assert not second or hasattr(found, second), (first, second)
            checked.add((first, second))
    functions = {first for first, _ in checked}
    modules = {
        "baselines",
        "shared_floor",
        "chunks",
        "confounding",
        "few_clusters",
        "outliers",
        "duplicates",
        "hypersensitive",
    }
    assert modules | {"sharpness", "power", "paired_bar"} <= functions
