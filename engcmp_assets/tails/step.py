"""tails: how bad the worst rows of an arm are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import scored_rows
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, plain
from engcmp_assets.kernel.row_table import row_table
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes, read_parquet
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work, output_blob
from engcmp_assets.tails.tail_statistics import TailRows, Tails, tail_statistics
from engcmp_resources.canonical import canonical_bytes

_SHARES = {f"share_above_{name}_nats": name.replace("_", ".") for name in ("0_1", "0_5", "1", "2")}
_NATS = {
    "mean_nats": "Mean of the measure over the rows",
    "median_nats": "Median of the measure: half of the rows are at or below it",
    **{
        f"p{name}_nats": f"{name.replace('_', '.')}th percentile: {name.replace('_', '.')} % of the rows are at or below it"
        for name in ("90", "95", "99", "99_9")
    },
    "max_nats": "Largest value of any row",
    "worst_1_percent_mean_nats": "Mean over the worst 1 % of the rows, at least one row",
}
_UNIT = MEASURES["kl_full"].unit


def measures_of(study: Study) -> tuple[str, ...]:
    """The distance from the reference that each panel has, each once."""
    return tuple(dict.fromkeys(plan.kl for plan in study.protocol.panels.values()))


def columns(measures: Sequence[str]) -> tuple[Column, ...]:
    """The columns of the table of tails of these measures."""
    definitions = " ".join(f"{name}: {MEASURES[name].definition}" for name in measures)
    return (
        Column("panel", "str", "1", "The panel"),
        Column("measure", "str", "1", f"The measure whose tails these are. {definitions}"),
        Column("population", "str", "1", "all, block:NAME or bucket:NAME"),
        Column("rows", "int", "row", "Rows of the population"),
        *(Column(name, "float", _UNIT, text) for name, text in _NATS.items()),
        *(
            Column(name, "float", "share of rows", f"Share of rows whose value is above {limit} {_UNIT}")
            for name, limit in _SHARES.items()
        ),
    )


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The panels and the roles whose rows count; tails are of the panel's main score path."""
    return {"roles": {name: plan.roles for name, plan in study.protocol.panels.items()}}


def tails_of(study: Study, panel: str, rows_file: Path, sha256: str) -> Tails:
    """The tails of a panel's scored row file, over the per-row mean of all runs on its main score path."""
    plan = study.protocol.panels[panel]
    measure, path = plan.kl, study.protocol.capture.main_path(panel)
    table = row_table(read_parquet(rows_file), [measure], roles=plan.roles, path=path, where=rows_file.name)
    return tail_statistics(table.per_row(measure), TailRows.of(table.keys), row_file_sha256=sha256)


def tails_document(work: Work) -> dict[str, Any]:
    """Every panel's tails, each with the hash of the row file that it came from."""
    document = {}
    for panel in work.study.protocol.panels:
        blob = output_blob(work.receipt("scores"), scored_rows(panel))
        tails = tails_of(work.study, panel, work.store.path(blob), blob.sha256)
        document[panel] = {"measure": work.study.protocol.panels[panel].kl} | plain(tails)
    return {"panels": document}


def make(work: Work) -> Made:
    """Quantiles, shares and worst rows of every panel; tails.json carries the hashes of the row files."""
    document, own = tails_document(work), columns(measures_of(work.study))
    table: dict[str, list[Any]] = {column.name: [] for column in own}
    for panel, tails in document["panels"].items():
        for population, entry in _populations(tails).items():
            words = {"panel": panel, "measure": tails["measure"], "population": population}
            for column in own:
                table[column.name].append(words.get(column.name) or entry[column.name])
    first, tails = next(iter(document["panels"].items()))
    names = [name.removesuffix("_nats") for name in _NATS]
    title = f"Tails of {tails['measure']}, panel {first}, all rows"
    plot = bars(title, names, [tails["overall"][name] for name in _NATS], unit="nats")
    counts = {panel: tails["overall"]["rows"] for panel, tails in document["panels"].items()}
    lines = len(table["panel"])
    return Made(
        products=[
            Product("tails.json", "json", canonical_bytes(document), rows=sum(counts.values())),
            Product("tails.parquet", "parquet", parquet_bytes(own, table), rows=lines, columns=own),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[Check("row_counts", all(counts.values()), f"Tails of {sum(counts.values())} rows", counts)],
        details={"worst_rows": {panel: tails["overall"]["worst_rows"] for panel, tails in document["panels"].items()}},
    )


def _populations(tails: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {
        "all": tails["overall"],
        **{f"block:{name}": entry for name, entry in tails["by_block"].items()},
        **{f"bucket:{name}": entry for name, entry in tails["by_bucket"].items()},
    }


def step(study: Study) -> Step:
    """The step of a study: it reads the scored rows of every panel."""
    return Step(
        artifact="tails",
        title="Tails",
        description=(
            "How far the arm's worst rows are from the reference, which a mean hides: percentiles of the distance up to its maximum, "
            "shares of rows above fixed distances, and the ten worst rows with their window, position and next token, over all rows, by "
            "kind of content and by length of the text."
        ),
        group="analysis",
        kinds=("numpy", "parquet"),
        version="2",
        uses=(
            Use("frozen_protocol", "study", ()),
            Use("scores", "arm", tuple(scored_rows(name) for name in study.protocol.panels)),
        ),
        per_arm=True,
        parameters=parameters,
        make=make,
        measures=measures_of(study),
        columns=columns(measures_of(study)),
        checks={"row_counts": "The tails are of every scored row in the panel's roles"},
    )
