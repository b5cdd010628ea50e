"""What a reader sees in Dagster: an asset's spec, and the event of a materialization with figures, plot, receipt and chain."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import dagster as dg

from engcmp_assets.catalog.lineage import lineage_of
from engcmp_assets.kernel.names import ALL, LAUNCH
from engcmp_assets.kernel.plots import format_number, markdown_image
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, plain
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.throughput.startup_measures import STARTUP_IDS
from engcmp_assets.kernel.work import Done, Session, Step, output_blob
from engcmp_assets.matrix import matrix_now, matrix_published
from engcmp_assets.steps import steps_of
from engcmp_resources.errors import EngcmpError, UnfitMachine

PLOT = "plot.png"
UNFIT = "unfit"  # the metadata of a failure that no second try on this machine mends
_MIB = 1 << 20
# The page makes a row of each number: with a thousand it does not open within a minute.
_PLOTTED = 100
# Of speeds and start-ups, what the table of figures shows.
_HEADLINES = frozenset(
    {"ttft_median_ms", "decode_tok_s", "decode_first1_tok_s", "prefill_tok_s", "aggregate_tok_s", *STARTUP_IDS}
)
_WITHOUT_UNIT = ("str", "bool", "object")
_ENDED_RUNS = 1000  # how many of the newest are looked through for arms that failed
WORDS = {
    "arm": "a checkpoint on an engine version, for example q4_0/llamacpp@b11549; each arm is a partition",
    "floor": "what a measure reads between runs of one arm, where nothing differs",
    "frozen": "fixed by hash before anything was measured",
    "interval": "where the value would lie with other documents of this kind, in 95 of 100 cases, unless another level is given",
    "iteration": "an addition to the frozen protocol: a file of data with a hash of its own",
    "pair": "two arms, or two ways of computing one arm's rows: the candidate, and the baseline that it is held against",
    "panel": "the texts, and the places in them, that one kind of figure is measured at",
    "reference": "the same weights computed in float32, which every arm is held against",
    "row": "one place in a text, with the probability of every token that may follow",
    "verdict": "whether the difference can be told from none",
    "window": "one text as a list of token ids",
}
"""What a newcomer may not know, said once; each description carries those that it uses."""


def asset_key(study: Study, artifact: str) -> dg.AssetKey:
    """`smollm2_cpu/captured_rows/pa`."""
    return dg.AssetKey([study.protocol.asset_prefix, *artifact.split("/")])


def spec_fields(study: Study, step: Step) -> dict[str, Any]:
    """An asset's spec, as `dg.asset` and `dg.AssetSpec` take it: what it is, what it depends on, its table."""
    deps = {use.artifact for use in step.uses}
    return {
        "key": asset_key(study, step.artifact),
        "deps": [asset_key(study, artifact) for artifact in sorted(deps)],
        "description": f"{step.description}\n\n{_words_in(step.description)}Study: {study.protocol.title}.",
        "group_name": step.group,
        "owners": study.protocol.owners,
        "kinds": set(step.kinds),
        "code_version": step.code_version,
        "tags": asset_tags(study, step),
        "metadata": {
            "dagster/column_schema": table_schema(step.columns),
            "dagster/column_lineage": column_lineage(study, step),
            "study": study.protocol.study,
        },
    }


def asset_tags(study: Study, step: Step) -> dict[str, str]:
    """By which assets are found in the UI, as `tag:"engcmp/study"="smollm2-cpu"`; a tag's value takes no slash."""
    return {
        "engcmp/study": study.protocol.study,
        "engcmp/artifact": step.artifact.replace("/", "."),
        "engcmp/of": "arm" if step.per_arm else "study",
        "engcmp/step_version": step.version,
    }


def column_lineage(study: Study, step: Step) -> dg.TableColumnLineage:
    """Of each column the columns of the assets above it that it is made from; a column that comes to be here has none."""
    found = lineage_of(step, {one.artifact: one for one in steps_of(study)})
    return dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep(asset_key(study, artifact), of) for artifact, of in origins]
            for column, origins in found.items()
        }
    )


def table_schema(columns: tuple[Column, ...]) -> dg.TableSchema:
    """The table of an asset, each column with its meaning and unit."""
    return dg.TableSchema(
        columns=[dg.TableColumn(column.name, column.dtype, description=_with_unit(column)) for column in columns]
    )


def check_specs(
    study: Study, step: Step, partitions: dg.PartitionsDefinition[Any] | None, further: Mapping[str, str] | None = None
) -> list[dg.AssetCheckSpec]:
    """The checks that a reader sees on the asset's page, for each partition of it; `further` are those of no single receipt."""
    key = asset_key(study, step.artifact)
    with warnings.catch_warnings():
        # Checks with partitions are a preview in this pinned version; without them a check would not say of which arm it speaks.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(name, asset=key, description=text, partitions_def=partitions)
            for name, text in (dict(step.checks) | dict(further or {})).items()
        ]


def materialize_result(
    session: Session,
    step: Step,
    arm: ArmKey | None,
    done: Done,
    *,
    instance: dg.DagsterInstance | None = None,
    further_checks: Sequence[Check] = (),
) -> dg.MaterializeResult[Any]:
    """The event of a materialization: figures first, then plot, chain and details, then what an auditor compares byte by byte.

    With an `instance`, the matrix of arms also tells those that were not measured because their last run failed.
    """
    receipt, study = done.receipt, session.study
    is_frozen = step.artifact == "frozen_protocol"
    data_version = receipt["frozen_sha256"] if is_frozen else receipt["content_id"]
    return dg.MaterializeResult(
        asset_key=asset_key(study, step.artifact),
        metadata={
            "state": _state(session, done),
            **_figures(receipt),
            **_matrix(session, step, arm, done, instance),
            **_plot(session, step, arm, receipt),
            "chain": dg.MetadataValue.md(chain_table(session, done)),
            **_numbers_alone(receipt),
            "details": dg.MetadataValue.json(receipt["details"]),
            "answered_from_store": done.answered_from_store,
            **({"flags": ", ".join(receipt["flags"])} if receipt["flags"] else {}),
            "frozen_sha256": receipt["frozen_sha256"],
            "receipt_sha256": done.sha256,
            "receipt": dg.MetadataValue.json(dict(receipt)),
            "data_version": data_version,
            "outputs": _outputs_table(receipt),
            "dagster/column_schema": table_schema(step.columns),
            "dagster/column_lineage": column_lineage(study, step),
            **_row_count(step, receipt),
            **_other_tables(step, receipt),
        },
        data_version=dg.DataVersion(data_version),
        check_results=[
            _check_result(study, step, check) for check in (*receipt["checks"], *plain(list(further_checks)))
        ],
    )


def ready_observation(study: Study, arm: ArmKey, facts: Mapping[str, Any], launch: str = LAUNCH) -> dg.AssetObservation:
    """Shown as soon as an engine is ready; the launch's receipt follows when its last start has ended."""
    return dg.AssetObservation(
        asset_key=asset_key(study, launch),
        partition=str(arm),
        description="The engine is ready; its settings read back as requested.",
        metadata={"facts": dg.MetadataValue.json(dict(facts))},
    )


def chain_table(session: Session, done: Done) -> str:
    """The receipts from this one down to the frozen protocol, as a Markdown table with links to their assets.

    What depends comes before what it depends on, so that the table begins here and ends with the frozen protocol.
    """
    rows = [
        [
            f"[{receipt['artifact']}]({asset_url(session.study, receipt['artifact'], receipt['arm'])})",
            receipt["arm"] or "study",
            f"`{sha256[:16]}`",
            f"`{receipt['content_id'][:16]}`",
        ]
        for sha256, receipt in reversed(_inputs_first(session, done))
    ]
    table = _table(("artifact", "arm", "receipt", "content id"), rows).md_str
    rest = "" if done.receipt["arm"] else "What each arm's artifacts rest on is in the chain of their own pages.\n\n"
    return f"{table}\n\n{rest}Frozen hash: `{done.receipt['frozen_sha256']}`"


def say_to(context: dg.AssetExecutionContext) -> Callable[[str], None]:
    """Progress goes to the event log and, in words, to whoever watches the process."""

    def say(text: str) -> None:
        context.log.info(text)
        stderr_line(text)

    return say


@contextmanager
def failures() -> Iterator[None]:
    """An error of ours becomes a Dagster failure: what, where and remedy each by itself, and in one line; nothing else is touched."""
    try:
        yield
    except EngcmpError as error:
        parts = {"what": error.what, "where": error.where, "remedy": error.remedy}
        metadata = {name: text for name, text in parts.items() if text}
        if isinstance(error, UnfitMachine):
            metadata[UNFIT] = "this machine cannot run it, whatever is tried again"
        raise dg.Failure(description=" ".join(str(error).split()), metadata=metadata, allow_retries=False) from error


def failed_arms(instance: dg.DagsterInstance, study: Study, arms: Sequence[str]) -> dict[str, str]:
    """Those of `arms` whose last run that has ended failed, each with what a reader should know of it."""
    prefix = study.protocol.asset_prefix
    wanted = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE], tags={"dagster/partition": list(arms)}
    )
    last: dict[str, dg.DagsterRun] = {}
    for run in instance.get_runs(wanted, limit=_ENDED_RUNS):
        if run.job_name.startswith(f"{prefix}_") or any(key.path[0] == prefix for key in run.asset_selection or ()):
            last.setdefault(run.tags["dagster/partition"], run)
    return {arm: f"run {run.run_id[:8]} failed; its page says why" for arm, run in last.items() if run.is_failure}


def _words_in(text: str) -> str:
    used = [f"**{word}** = {meaning}" for word, meaning in WORDS.items() if re.search(rf"\b{word}s?\b", text)]
    return f"Words: {'; '.join(used)}.\n\n" if used else ""


def _state(session: Session, done: Done) -> str:
    """Whether this run made it, in words; else which run did, and when."""
    if not done.answered_from_store:
        return "made in this run"
    origin = done.receipt["answered_by"]
    maker = done.receipt if origin is None else session.store.read_receipt(origin)
    return f"answered from the store (made {maker['finished_at'][:10]} by run {maker['run_id'][:8]})"


def _matrix(
    session: Session, step: Step, arm: ArmKey | None, done: Done, instance: dg.DagsterInstance | None
) -> dict[str, Any]:
    """Checkpoint by version as of this event, on the two assets that a reader goes to for results."""

    def page(of: ArmKey) -> str:
        return asset_url(session.study, "summaries", str(of))

    def failed(arms: Sequence[str]) -> Mapping[str, str]:
        return failed_arms(instance, session.study, arms) if instance else {}

    if step.artifact == "summaries" and arm is not None:
        return {"matrix": dg.MetadataValue.md(matrix_now(session, arm, failed, page))}
    if step.artifact == "publication":
        return {"matrix": dg.MetadataValue.md(matrix_published(session, done, page))}
    return {}


def asset_url(study: Study, artifact: str, arm: str | None) -> str:
    """The page of an artifact in the UI; of an arm's, the page of that partition."""
    path = f"/assets/{study.protocol.asset_prefix}/{artifact}"
    # The overview shows the latest event of any partition, and cuts hashes off: these two views do neither.
    return f"{path}?view=partitions&partition={quote(arm, safe='')}" if arm else f"{path}?view=events"


def _inputs_first(session: Session, done: Done) -> list[tuple[str, Mapping[str, Any]]]:
    """Every receipt that `done` rests on, by hash and content, each after all of its inputs; `done` is the last.

    Of a study-wide artifact, what its arms rest on is left to the pages of those arms: a table of all would grow with every arm's chain.
    """
    ordered: dict[str, Mapping[str, Any]] = {}
    wide = done.receipt["arm"] is None

    def visit(sha256: str, receipt: Mapping[str, Any]) -> None:
        for item in [] if wide and receipt["arm"] is not None else receipt["inputs"]:
            if item["receipt_sha256"] not in ordered:
                visit(item["receipt_sha256"], session.store.read_receipt(item["receipt_sha256"]))
        ordered[sha256] = receipt

    visit(done.sha256, done.receipt)
    return list(ordered.items())


def _with_unit(column: Column) -> str:
    if column.dtype in _WITHOUT_UNIT and column.unit == "1":
        return column.description
    return f"{column.description} [{'pure number' if column.unit == '1' else f'unit: {column.unit}'}]"


def _figures(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """The figures over all rows as a short table, and every figure with its id. Of speeds, which have cells and no rows, the headlines."""
    if not receipt["figures"]:
        return {}
    over_all = [figure for figure in receipt["figures"] if figure["population"] == ALL]
    short = [
        [figure["measure"], figure["panel"], *_numbers(figure), figure["unit"],
         _arm_of(figure, receipt), figure["rows"], figure["clusters"]]
        for figure in over_all
    ]  # fmt: skip
    full = [
        [figure["measure"], figure["panel"], figure["population"], *_numbers(figure), figure["unit"],
         _arm_of(figure, receipt), f"`{figure['figure_id']}`"]
        for figure in receipt["figures"]
    ]  # fmt: skip
    table = _table(("measure", "panel", "value", "interval", "unit", "arm", "rows", "documents"), short)
    return {
        "figures": table if short else _headlines(receipt),
        "every_figure": _table(("measure", "panel", "population", "value", "interval", "unit", "arm", "id for engcmp trace"), full),
    }  # fmt: skip


def _headlines(receipt: Mapping[str, Any]) -> dg.MarkdownMetadataValue:
    """The speeds and start-ups that a reader looks at first, those that have a value, cell by cell."""
    shown = [
        [
            figure["measure"],
            figure["population"],
            _numbers(figure)[0],
            figure["unit"],
            figure["rows"],
            f"`{figure['figure_id']}`",
        ]
        for figure in receipt["figures"]
        if figure["measure"] in _HEADLINES and not isinstance(figure["value"], dict)
    ]
    return _table(("measure", "cell", "value", "unit", "requests", "id for engcmp trace"), shown)


def _numbers_alone(receipt: Mapping[str, Any]) -> dict[str, float]:
    """The figures over all rows as numbers, which Dagster plots over time. Of too many none: each arm's own page has its own.

    Labels carry panel and arm: panels share measures, and an asset's page mixes partitions.
    """
    plotted = {
        f"{figure['measure']}, {figure['panel']} ({_arm_of(figure, receipt)})": float(figure["value"])
        for figure in receipt["figures"]
        if figure["population"] == ALL and not isinstance(figure["value"], dict)
    }
    return plotted if len(plotted) <= _PLOTTED else {}


def _numbers(figure: Mapping[str, Any]) -> tuple[str, str]:
    value, ends = figure["value"], figure["interval"]
    number = f"not measured: {value['missing']}" if isinstance(value, dict) else format_number(value)
    return number, ends.get("missing") or f"[{format_number(ends['low'])}, {format_number(ends['high'])}]"


def _arm_of(figure: Mapping[str, Any], receipt: Mapping[str, Any]) -> str:
    return str(figure["details"].get("arm", receipt["arm"] or ""))


def _plot(session: Session, step: Step, arm: ArmKey | None, receipt: Mapping[str, Any]) -> dict[str, Any]:
    if not any(output["name"] == PLOT for output in receipt["outputs"]):
        return {}
    png = session.store.path(output_blob(receipt, PLOT)).read_bytes()
    title = f"{step.title}, {arm or session.study.protocol.study}"
    return {"plot": dg.MetadataValue.md(markdown_image(png, title))}


def _outputs_table(receipt: Mapping[str, Any]) -> dg.MarkdownMetadataValue:
    # The hash comes first, as sha256sum writes it: the page cuts a wide table off at the right.
    rows = [
        [f"`{output['sha256']}`", output["name"], "" if output["rows"] is None else output["rows"], f"{output['bytes'] / _MIB:.3f}"]
        for output in receipt["outputs"]
    ]  # fmt: skip
    return _table(("sha256", "output", "rows", "MiB"), rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str | int]]) -> dg.MarkdownMetadataValue:
    """A Markdown table. The UI shows it in place up to 1,000 characters and behind a click beyond."""
    lines = [header, ["---"] * len(header), *rows]
    return dg.MetadataValue.md("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))


def _row_count(step: Step, receipt: Mapping[str, Any]) -> dict[str, int]:
    """Rows of the asset's table; where it has one a panel, of all of them."""
    tables = [output["rows"] for output in receipt["outputs"] if output["rows"] is not None and _is_shown(step, output)]
    return {"dagster/row_count": sum(tables)} if tables else {}


def _other_tables(step: Step, receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Tables whose columns are not those that the asset shows, each kind once, under the name of its first file."""
    found: dict[tuple[Column, ...], str] = {}
    for output in receipt["outputs"]:
        if output["columns"] and not _is_shown(step, output):
            found.setdefault(tuple(Column(**column) for column in output["columns"]), output["name"])
    return {
        f"columns of {name}": dg.MetadataValue.table_schema(table_schema(columns)) for columns, name in found.items()
    }


def _is_shown(step: Step, output: Mapping[str, Any]) -> bool:
    names = {column["name"] for column in output["columns"]}
    return bool(names) and names <= {column.name for column in step.columns}


def _check_result(study: Study, step: Step, check: Mapping[str, Any]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=check["passed"],
        check_name=check["name"],
        asset_key=asset_key(study, step.artifact),
        severity=dg.AssetCheckSeverity.WARN,
        description=check["explanation"],
        metadata={name: _shown(value) for name, value in check["evidence"].items()},
    )


def _shown(value: Any) -> Any:
    """Evidence as Dagster shows it best: plain values in place, the rest as JSON."""
    return value if isinstance(value, str | bool | int | float) else dg.MetadataValue.json(value)
