"""What a reader sees in Dagster: an asset's spec, and the event of a materialization with figures, plot, receipt and chain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import dagster as dg

from engcmp_assets.kernel.plots import format_number, markdown_image
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Done, Session, Step, output_blob
from engcmp_resources.errors import EngcmpError

_MIB = 1 << 20


def asset_key(study: Study, artifact: str) -> dg.AssetKey:
    """`smollm2_cpu/captured_rows/pa`."""
    return dg.AssetKey([study.protocol.asset_prefix, *artifact.split("/")])


def spec_fields(study: Study, step: Step) -> dict[str, Any]:
    """An asset's spec, as `dg.asset` and `dg.AssetSpec` take it: what it is, what it depends on, its table."""
    deps = {use.artifact for use in step.uses}
    return {
        "key": asset_key(study, step.artifact),
        "deps": [asset_key(study, artifact) for artifact in sorted(deps)],
        "description": f"{step.description}\n\nStudy: {study.protocol.title}.",
        "group_name": step.group,
        "owners": study.protocol.owners,
        "kinds": set(step.kinds),
        "code_version": step.code_version,
        "metadata": {"dagster/column_schema": table_schema(step.columns), "study": study.protocol.study},
    }


def table_schema(columns: tuple[Column, ...]) -> dg.TableSchema:
    """The table of an asset, each column with its unit and meaning."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(column.name, column.dtype, description=f"{column.description} [unit: {column.unit}]")
            for column in columns
        ]
    )


def check_specs(study: Study, step: Step) -> list[dg.AssetCheckSpec]:
    """The checks that a reader sees on the asset's page."""
    key = asset_key(study, step.artifact)
    return [dg.AssetCheckSpec(name, asset=key, description=text) for name, text in step.checks.items()]


def materialize_result(session: Session, step: Step, arm: ArmKey | None, done: Done) -> dg.MaterializeResult[Any]:
    """The event of a materialization: data version, figures, plot, checks, receipt, and the chain to the frozen hash."""
    receipt, study = done.receipt, session.study
    is_frozen = step.artifact == "frozen_protocol"
    metadata: dict[str, Any] = {
        "answered_from_store": done.answered_from_store,
        "frozen_sha256": receipt["frozen_sha256"],
        "receipt_sha256": done.sha256,
        "receipt": dg.MetadataValue.json(dict(receipt)),
        "outputs": dg.MetadataValue.md(_outputs_table(receipt)),
        "chain": dg.MetadataValue.md(chain_table(session, done)),
        "dagster/column_schema": table_schema(step.columns),
        "details": dg.MetadataValue.json(receipt["details"]),
    }
    rows = next(
        (output["rows"] for output in receipt["outputs"] if output["columns"] and output["rows"] is not None), None
    )
    if rows is not None:
        metadata["dagster/row_count"] = rows
    if receipt["flags"]:
        metadata["flags"] = ", ".join(receipt["flags"])
    if receipt["figures"]:
        metadata["figures"] = dg.MetadataValue.md(_figures_table(receipt))
        metadata |= _plotted_figures(receipt)
    plot = next((output for output in receipt["outputs"] if output["name"] == "plot.png"), None)
    if plot is not None:
        png = session.store.path(output_blob(receipt, "plot.png")).read_bytes()
        metadata["plot"] = dg.MetadataValue.md(markdown_image(png, f"{step.title}, {arm or study.protocol.study}"))
    return dg.MaterializeResult(
        asset_key=asset_key(study, step.artifact),
        metadata=metadata,
        data_version=dg.DataVersion(receipt["frozen_sha256"] if is_frozen else receipt["content_id"]),
        check_results=[_check_result(study, step, check) for check in receipt["checks"]],
    )


def ready_observation(study: Study, arm: ArmKey, facts: Mapping[str, Any]) -> dg.AssetObservation:
    """Shown as soon as an engine is ready; the launch's receipt follows when its last start has ended."""
    return dg.AssetObservation(
        asset_key=asset_key(study, "engine_launch/scoring"),
        partition=str(arm),
        description="The engine is ready; its settings read back as requested.",
        metadata={"facts": dg.MetadataValue.json(dict(facts))},
    )


def chain_table(session: Session, done: Done) -> str:
    """The receipts from this one down to the frozen protocol, as a Markdown table with links to their assets."""
    lines = ["| artifact | arm | receipt | content id |", "|---|---|---|---|"]
    seen: set[str] = set()
    queue = [(done.sha256, dict(done.receipt))]
    while queue:
        sha256, receipt = queue.pop(0)
        if sha256 in seen:
            continue
        seen.add(sha256)
        link = f"[{receipt['artifact']}]({_asset_url(session.study, receipt['artifact'], receipt['arm'])})"
        lines.append(f"| {link} | {receipt['arm'] or 'study'} | `{sha256[:16]}` | `{receipt['content_id'][:16]}` |")
        for item in reversed(receipt["inputs"]):
            queue.append((item["receipt_sha256"], session.store.read_receipt(item["receipt_sha256"])))
    return "\n".join([*lines, "", f"Frozen hash: `{done.receipt['frozen_sha256']}`"])


def say_to(context: dg.AssetExecutionContext) -> Callable[[str], None]:
    """Progress goes to the event log and, in words, to whoever watches the process."""

    def say(text: str) -> None:
        context.log.info(text)
        stderr_line(text)

    return say


@contextmanager
def failures() -> Iterator[None]:
    """An error of ours becomes a Dagster failure whose description says what to do; nothing else is touched."""
    try:
        yield
    except EngcmpError as error:
        metadata = {"what": error.what, "where": error.where or "", "remedy": error.remedy or ""}
        raise dg.Failure(description=str(error), metadata=metadata, allow_retries=False) from error


def _asset_url(study: Study, artifact: str, arm: str | None) -> str:
    path = f"/assets/{study.protocol.asset_prefix}/{artifact}"
    return f"{path}?view=partitions&partition={quote(arm, safe='')}" if arm else path


def _outputs_table(receipt: Mapping[str, Any]) -> str:
    lines = ["| output | sha256 | MiB | rows |", "|---|---|---|---|"]
    for output in receipt["outputs"]:
        rows = "" if output["rows"] is None else output["rows"]
        lines.append(f"| {output['name']} | `{output['sha256']}` | {output['bytes'] / _MIB:.3f} | {rows} |")
    return "\n".join(lines)


def _figures_table(receipt: Mapping[str, Any]) -> str:
    lines = ["| figure | arm | value | interval | unit | rows | documents |", "|---|---|---|---|---|---|---|"]
    for figure in receipt["figures"]:
        value, ends = figure["value"], figure["interval"]
        number = f"not measured: {value['missing']}" if isinstance(value, dict) else format_number(value)
        between = ends.get("missing") or f"[{format_number(ends['low'])}, {format_number(ends['high'])}]"
        arm = figure["details"].get("arm", receipt["arm"] or "")
        name = f"{figure['measure']}, {figure['population']} (`{figure['figure_id']}`)"
        lines.append(
            f"| {name} | {arm} | {number} | {between} | {figure['unit']} | {figure['rows']} | {figure['clusters']} |"
        )
    return "\n".join(lines)


def _plotted_figures(receipt: Mapping[str, Any]) -> dict[str, float]:
    """Numbers that Dagster plots over time; the label carries the arm, since an asset's page mixes partitions."""
    return {
        f"{figure['measure']} ({figure['details'].get('arm', receipt['arm'])})": figure["value"]
        for figure in receipt["figures"]
        if figure["population"] == "all" and not isinstance(figure["value"], dict)
    }


def _check_result(study: Study, step: Step, check: Mapping[str, Any]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=check["passed"],
        check_name=check["name"],
        asset_key=asset_key(study, step.artifact),
        severity=dg.AssetCheckSeverity.WARN,
        description=check["explanation"],
        metadata={"evidence": dg.MetadataValue.json(json.loads(json.dumps(check["evidence"])))},
    )
