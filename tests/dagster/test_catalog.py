"""The catalog is complete: a walk over every asset and every field, and a proof that it misses what is taken away."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import dagster as dg
import pyarrow.parquet as pq
import pytest
from homes import ARMS, EVERY_ARM, LONE, Q4, Q8, STUDY, head_file
from PIL import Image
from ui_process import forget, home_without_dagster

from engcmp_assets import events
from engcmp_assets.automation import sync_partitions
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.graph import definitions
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import AUDIT, ENGINE_VERSIONS
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Session
from engcmp_assets.steps import step_named, steps_of
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.store import Store

PREFIX = "smollm2_cpu"
STEPS = steps_of(load_study(STUDY))
OF_ARM = [step.artifact for step in STEPS if step.per_arm]
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# What a newcomer cannot know, and no description may leave unexplained (an explanation stands in brackets behind the word).
JARGON = (
    "KL", "Bonferroni", "bootstrap", "quantile", "quantiles", "teacher", "dequantized", "requantized", "logits", "bucket", "cluster",
    "NaN", "declared look", "wheel", "wheels", "top K", "Parquet", "JSON schema", "multi-asset",
)  # fmt: skip
LEAST_CHARACTERS, LEAST_WORDS, LEAST_PIXELS, MOST_KINDS = 80, 6, 300, 4


@dataclass(frozen=True)
class Entry:
    """One asset as the catalog has it: its spec, its latest event, and what these must agree with on disk."""

    artifact: str
    description: str
    owners: tuple[str, ...]
    kinds: frozenset[str]
    group: str | None
    code_version: str | None
    columns: tuple[dg.TableColumn, ...]
    tags: Mapping[str, str]
    lineage: Mapping[str, Sequence[dg.TableColumnDep]]
    checks: Mapping[str, str]
    event: Mapping[str, Any]
    evaluations: Mapping[str, tuple[str, Mapping[str, Any]]]
    receipt: Mapping[str, Any]
    home: Path
    title: str
    frozen: str
    assets: Mapping[str, frozenset[str]]
    above: frozenset[str]
    partitions: frozenset[str]

    def file(self, name: str) -> Path:
        output = next(output for output in self.receipt["outputs"] if output["name"] == name)
        return self.home / "store" / output["sha256"][:2] / f"{output['sha256']}.{output['suffix']}"


# ---------------------------------------------------------------- the fields, each with what it must be


def description(entry: Entry) -> Iterator[str]:
    own, _, words = entry.description.partition("\n\n")
    first = re.split(r"[.:;] ", own)[0]
    if len(own) < LEAST_CHARACTERS or len(first.split()) < LEAST_WORDS:
        yield f"says too little: {own!r}"
    if f"Study: {entry.title}." not in entry.description:
        yield "does not name its study"
    for word in JARGON:
        if re.search(rf"\b{word}\b(?! \()", own):
            yield f"uses {word!r} without a word of explanation"
    for word, meaning in events.WORDS.items():
        if re.search(rf"\b{word}s?\b", own) and f"**{word}** = {meaning}" not in words:
            yield f"does not say what {word!r} is"


def owner(entry: Entry) -> Iterator[str]:
    if not entry.owners or not all("@" in name or name.startswith("team:") for name in entry.owners):
        yield f"owners are {entry.owners}"


def kinds(entry: Entry) -> Iterator[str]:
    if not 1 <= len(entry.kinds) <= MOST_KINDS:
        yield f"{len(entry.kinds)} kinds; a page shows 1 to {MOST_KINDS}"


def group(entry: Entry) -> Iterator[str]:
    if entry.group in (None, "", "default"):
        yield f"group is {entry.group}"


def code_version(entry: Entry) -> Iterator[str]:
    step = step_named(load_study(STUDY), entry.artifact)
    if not entry.code_version or entry.code_version != step.code_version:
        yield f"is {entry.code_version}"


def tags(entry: Entry) -> Iterator[str]:
    """By which the asset is found: its study, its name, and whether it is of an arm."""
    of = "arm" if entry.artifact in OF_ARM else "study"
    wanted = {"engcmp/study": STUDY, "engcmp/artifact": entry.artifact.replace("/", "."), "engcmp/of": of}
    yield from (f"{name} is {entry.tags.get(name)}" for name, value in wanted.items() if entry.tags.get(name) != value)
    if not (entry.code_version or "").startswith(entry.tags.get("engcmp/step_version", "none")):
        yield f"engcmp/step_version is {entry.tags.get('engcmp/step_version')}"


# Of these no column is made from another asset's column: where a study begins, what looks at files and not at columns, what lies outside.
BEGINS = ("frozen_protocol", "catalog", "audit")
MADE_HERE = {"engine_launch/scoring": {"start"}, "engine_launch/serving": {"start"}}


def lineage(entry: Entry) -> Iterator[str]:
    """Of every column the columns that it is made from: of assets right above this one, and of columns that these have."""
    shown = entry.event.get("dagster/column_lineage")
    if shown is None or dict(shown.deps_by_column) != dict(entry.lineage):
        yield "the event's is not the spec's"
    if set(entry.lineage) != {column.name for column in entry.columns}:
        yield f"{sorted(set(entry.lineage) ^ {column.name for column in entry.columns})} are missing or too many"
    for column, origins in entry.lineage.items():
        for one in origins:
            name = one.asset_key.to_user_string()
            if name not in entry.above or one.column_name not in entry.assets[name]:
                yield f"{column} is said to be made from {one.column_name} of {name}, which is not above it"
        begins = entry.artifact in BEGINS or column in MADE_HERE.get(entry.artifact, set())
        if not origins and not begins and not (entry.artifact == ENGINE_VERSIONS and column != "engine"):
            yield f"of {column} is empty"


def schema(entry: Entry) -> Iterator[str]:
    """Every column of every table, as the spec, the event and the receipt have them."""
    if not entry.columns:
        yield "no columns"
    shown = entry.event.get("dagster/column_schema")
    if shown is None or tuple(shown.columns) != entry.columns:
        yield "the event's columns are not the spec's"
    others = [value for value in entry.event.values() if isinstance(value, dg.TableSchema)]
    for table in (dg.TableSchema(list(entry.columns)), *others):
        for column in table.columns:
            yield from (f"column {column.name} {fault}" for fault in _column_faults(column, table))
    covered = {column.name for table in others for column in table.columns}
    for output in entry.receipt["outputs"]:
        for column in output["columns"]:
            if column["name"] not in covered:
                yield f"column {column['name']} of {output['name']} is nowhere described"


def _column_faults(column: dg.TableColumn, table: dg.TableSchema) -> Iterator[str]:
    text, _, unit = (column.description or "").rpartition(" [")
    if not column.type:
        yield "has no type"
    if not column.description or len(column.description) < 5:
        yield "is not described"
    if column.type in ("int", "float"):
        if not re.fullmatch(r"(pure number|unit: .+)\]", unit):
            yield "has no unit"
        if unit == "unit: as the measure]" and "unit" not in {other.name for other in table.columns}:
            yield "leaves its unit to a column that is not there"
    about = MEASURES.get(column.name)
    if about and (text != f"{about.title}: {about.definition}" or unit != f"unit: {about.unit}]"):
        yield "is a measure that is described in other words than where it is defined"


def row_count(entry: Entry) -> Iterator[str]:
    count = entry.event.get("dagster/row_count")
    names = {column.name for column in entry.columns}
    found = 0
    for output in entry.receipt["outputs"]:
        own = {column["name"] for column in output["columns"]}
        if own and own <= names:
            if output["suffix"] == "parquet":
                found += pq.read_metadata(entry.file(output["name"])).num_rows
            else:
                lines = json.loads(entry.file(output["name"]).read_bytes())["arms"]
                found += len(lines)
                if not all(set(line) <= names for line in lines):
                    yield f"{output['name']} has fields that no column describes"
    if count is None or count != found or not found:
        yield f"{count}, the table has {found}"


def figures(entry: Entry) -> Iterator[str]:
    """Each figure over all rows by itself, labelled with measure, panel and arm; each figure at all with its id."""
    table, every = entry.event.get("figures", ""), entry.event.get("every_figure", "")
    for one in entry.receipt["figures"]:
        arm = one["details"].get("arm") or entry.receipt["arm"]
        if f"`{one['figure_id']}`" not in every:
            yield f"{one['figure_id']} is not listed"
        if one["population"] != "all":
            continue
        label = f"{one['measure']}, {one['panel']} ({arm})"
        if not isinstance(one["value"], dict) and entry.event.get(label) != one["value"]:
            yield f"{label} is {entry.event.get(label)}, the receipt has {one['value']}"
        if not re.search(rf"^\| {one['measure']} \| {one['panel']} \|.*\| {re.escape(arm)} \|", table, re.MULTILINE):
            yield f"{label} is not in the table"
    for name, value in entry.event.items():
        if isinstance(value, float) and not re.fullmatch(r"\w+, \w+ \(.+\)", name):
            yield f"{name} does not say of which panel and arm it is"


def plot(entry: Entry) -> Iterator[str]:
    match = re.search(r"data:image/png;base64,([A-Za-z0-9+/=]+)", entry.event.get("plot", ""))
    if match is None:
        yield "no picture"
        return
    data = base64.b64decode(match[1])
    if hashlib.sha256(data).hexdigest() not in {output["sha256"] for output in entry.receipt["outputs"]}:
        yield "is not the plot of the receipt"
    with Image.open(io.BytesIO(data)) as image:
        if image.format != "PNG" or image.width < LEAST_PIXELS:
            yield f"{image.format} of {image.width} pixels"


def sha256(entry: Entry) -> Iterator[str]:
    for output in entry.receipt["outputs"]:
        if not re.search(rf"`{output['sha256']}` \| {re.escape(output['name'])} \|", entry.event.get("outputs", "")):
            yield f"of {output['name']} is missing"
    if entry.event.get("frozen_sha256") != entry.frozen:
        yield "of the frozen protocol is missing"


def receipt(entry: Entry) -> Iterator[str]:
    name = entry.event.get("receipt_sha256", "")
    stored = entry.home / "receipts" / f"{name}.json"
    if not stored.is_file() or canonical_bytes(entry.event.get("receipt", {})) != stored.read_bytes():
        yield "is not the stored one"
    if hashlib.sha256(canonical_bytes(entry.event.get("receipt", {}))).hexdigest() != name:
        yield "does not have its hash"


def chain(entry: Entry) -> Iterator[str]:
    text = entry.event.get("chain", "")
    lines = re.findall(r"^\| \[(.+?)\]\((.+?)\) \| (\S+) \| `(\w+)` \| `(\w+)` \|$", text, re.MULTILINE)
    if not lines or lines[0][0] != entry.artifact or lines[-1][0] != "frozen_protocol":
        yield "does not lead from here to the frozen protocol"
    for artifact, link, arm, hash_start, _ in lines:
        place = urlsplit(link)
        asked = parse_qs(place.query)
        if place.path != f"/assets/{PREFIX}/{artifact}" or place.path.removeprefix("/assets/") not in entry.assets:
            yield f"links {artifact} to {link}, which is no asset"
        wanted = {"view": ["events"]} if arm == "study" else {"view": ["partitions"], "partition": [arm]}
        if asked != wanted or (arm != "study" and arm not in entry.partitions):
            yield f"links {artifact} of {arm} to {link}, which is no partition"
        if not list((entry.home / "receipts").glob(f"{hash_start}*.json")):
            yield f"names a receipt {hash_start} that does not exist"
    if f"Frozen hash: `{entry.frozen}`" not in text:
        yield "does not end with the frozen hash"


def checks(entry: Entry) -> Iterator[str]:
    if not entry.checks or not all(len(text) > 20 for text in entry.checks.values()):
        yield f"are {dict(entry.checks)}"


def evidence(entry: Entry) -> Iterator[str]:
    if set(entry.evaluations) != set(entry.checks):
        yield f"of {sorted(set(entry.evaluations) ^ set(entry.checks))} is missing"
    for name, (words, metadata) in entry.evaluations.items():
        if not words or not metadata:
            yield f"of {name} is empty"


def state(entry: Entry) -> Iterator[str]:
    text = entry.event.get("state", "")
    answered = entry.event.get("answered_from_store")
    pattern = r"answered from the store \(made \d{4}-\d\d-\d\d by run \S{8}\)" if answered else "made in this run"
    if answered is None or not re.fullmatch(pattern, text):
        yield f"is {text!r}"
    before = ("waiting", "releases")  # of a look for new versions, what a reader has to act on stands above it
    if next((name for name in entry.event if name not in before), None) != "state":
        yield "is not the first thing that the page shows"


def matrix(entry: Entry) -> Iterator[str]:
    """Checkpoint by version, on the assets that a reader goes to for results."""
    text = entry.event.get("matrix")
    if entry.artifact not in ("summaries", "publication"):
        return
    for arm in entry.partitions:
        if text is None or text.count(f"partition={arm.replace('/', '%2F').replace('@', '%40')})") != 1:
            yield f"has no cell for {arm}"


FIELDS: dict[str, Callable[[Entry], Iterator[str]]] = {
    field.__name__: field
    for field in (
        description, owner, kinds, group, code_version, tags, lineage, schema,
        row_count, figures, plot, sha256, receipt, chain, checks, evidence,
        state, matrix,
    )
}  # fmt: skip


def walk(entry: Entry) -> list[str]:
    """Everything that the asset lacks, as `asset: field: fault`."""
    return [f"{entry.artifact}: {name}: {fault}" for name, field in FIELDS.items() for fault in field(entry)]


# ---------------------------------------------------------------- the walk


@dataclass(frozen=True)
class Catalog:
    """One arm and the results, materialized from the store in an empty Dagster instance."""

    instance: dg.DagsterInstance
    home: Path
    study: Study
    entries: Mapping[str, Entry]

    def run(self, job: str, arm: str | None, **options: Any) -> dg.ExecuteInProcessResult:
        definition = definitions().resolve_job_def(job)
        return definition.execute_in_process(instance=self.instance, partition_key=arm, run_config=QUIET, **options)

    def event(self, artifact: str, arm: str | None) -> dict[str, Any]:
        return event_of(self.instance, artifact, arm)

    def shown(self, artifact: str, arm: str | None, **options: Any) -> dict[str, Any]:
        """The metadata of an event for what is in the store now."""
        session = Session(self.study, Store(self.home), "shown", lambda _text: None)
        key = ArmKey.parse(arm) if arm else None
        done = session.current(artifact, key)
        assert done is not None
        result = events.materialize_result(session, step_named(self.study, artifact), key, done, **options)
        return {name: getattr(value, "value", value) for name, value in (result.metadata or {}).items()}


@pytest.fixture(scope="module")
def catalog(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    folder = tmp_path_factory.mktemp("catalog")
    home = home_without_dagster(measured_home, folder / "home")
    (folder / "locks").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGCMP_HOME", str(home))
        patch.setenv("ENGCMP_LOCK_DIR", str(folder / "locks"))
        patch.setenv("DAGSTER_HOME", str(home / "dagster"))
        study = load_study(STUDY)
        with open_instance() as instance:
            sync_partitions(instance, study)
            made = Catalog(instance, home, study, {})
            made.run(f"{PREFIX}_arm", Q4)
            made.run(f"{PREFIX}_results", None)
            made.run(f"{PREFIX}_{AUDIT}", None)
            with index_of_what_is_pinned(study, patch):
                made.run(f"{PREFIX}_{ENGINE_VERSIONS}", None)
            yield replace(made, entries=entries_of(instance, home, study))


@contextmanager
def index_of_what_is_pinned(study: Study, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package index on this machine that shows just the wheels that the protocol pins: a look at it finds nothing new."""

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            package = self.path.strip("/").split("/")[-1]
            wheels = [w for s in study.protocol.sources.values() if s.package == package for w in s.wheels.values()]
            page = "".join(f'<a href="{wheel.file}#sha256={wheel.sha256}">{wheel.file}</a>\n' for wheel in wheels)
            self.send_response(200 if wheels else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f"<!DOCTYPE html><html><body>{page}</body></html>".encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a test has no access log."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server, patch.context() as apart:
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
            apart.delenv(name, raising=False)
        apart.setenv("PIP_CONFIG_FILE", os.devnull)
        apart.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _own_home(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGCMP_HOME", str(catalog.home))


def entries_of(instance: dg.DagsterInstance, home: Path, study: Study) -> dict[str, Entry]:
    location = definitions()
    every = {spec.key.to_user_string(): spec for spec in location.resolve_all_asset_specs()}
    specs = {
        name: spec for name, spec in every.items() if name.startswith(f"{PREFIX}/")
    }  # of the study that was measured
    texts: dict[str, dict[str, str]] = {}
    for asset in location.assets or ():
        assert isinstance(asset, dg.AssetsDefinition)
        for check in asset.check_specs:
            texts.setdefault(check.asset_key.to_user_string(), {})[check.name] = check.description or ""
    found, evaluations = {}, evaluations_of(instance)
    for name, spec in specs.items():
        artifact = name.removeprefix(f"{PREFIX}/")
        arm = Q4 if artifact in OF_ARM else None
        head = json.loads(head_file(home, artifact, arm).read_bytes())["receipt_sha256"]
        columns = spec.metadata["dagster/column_schema"]
        found[artifact] = Entry(
            artifact, spec.description or "", tuple(spec.owners), frozenset(spec.kinds), spec.group_name, spec.code_version,
            tuple(getattr(columns, "value", columns).columns), spec.tags, lineage_in(spec.metadata), texts.get(name, {}),
            event_of(instance, artifact, arm),
            evaluations.get(spec.key, {}), json.loads((home / "receipts" / f"{head}.json").read_bytes()), home,
            study.protocol.title, study.frozen_sha256, columns_in(specs),
            frozenset(dep.asset_key.to_user_string() for dep in spec.deps),
            frozenset(instance.get_dynamic_partitions(f"{PREFIX}_arms")),
        )  # fmt: skip
    return found


def lineage_in(metadata: Mapping[str, Any]) -> Mapping[str, Sequence[dg.TableColumnDep]]:
    found = metadata["dagster/column_lineage"]
    return dict(getattr(found, "value", found).deps_by_column)


def columns_in(specs: Mapping[str, dg.AssetSpec]) -> dict[str, frozenset[str]]:
    """The columns of each asset."""
    found = {name: spec.metadata["dagster/column_schema"] for name, spec in specs.items()}
    return {name: frozenset(one.name for one in getattr(own, "value", own).columns) for name, own in found.items()}


def event_of(instance: dg.DagsterInstance, artifact: str, arm: str | None) -> dict[str, Any]:
    """The latest event: a materialization, or an observation of what lies outside."""
    wanted = dg.AssetRecordsFilter(dg.AssetKey([PREFIX, *artifact.split("/")]), asset_partitions=[arm] if arm else None)
    if artifact == ENGINE_VERSIONS:
        event = instance.fetch_observations(wanted, limit=1).records[0].asset_observation
    else:
        event = instance.fetch_materializations(wanted, limit=1).records[0].asset_materialization
    assert event is not None
    return {name: value.value for name, value in event.metadata.items()}


def evaluations_of(instance: dg.DagsterInstance) -> dict[dg.AssetKey, dict[str, tuple[str, Mapping[str, Any]]]]:
    """What the checks of every asset said last."""
    found: dict[dg.AssetKey, dict[str, tuple[str, Mapping[str, Any]]]] = {}
    for run in instance.get_runs():
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
            assert entry.dagster_event is not None
            data = entry.dagster_event.asset_check_evaluation_data
            found.setdefault(data.asset_key, {})[data.check_name] = (data.description or "", data.metadata)
    return found


def test_the_walk_is_over_every_asset_of_the_graph(catalog: Catalog) -> None:
    assert set(catalog.entries) == {step.artifact for step in STEPS}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("artifact", [step.artifact for step in STEPS])
def test_every_asset_has_every_field(catalog: Catalog, artifact: str, field: str) -> None:
    assert list(FIELDS[field](catalog.entries[artifact])) == []


# ---------------------------------------------------------------- what the walk must not miss


def without(name: str) -> Callable[[Entry], Entry]:
    return lambda entry: replace(entry, event={key: value for key, value in entry.event.items() if key != name})


def said(name: str, change: Callable[[Any], Any]) -> Callable[[Entry], Entry]:
    return lambda entry: replace(
        entry, event={key: change(value) if key == name else value for key, value in entry.event.items()}
    )


def column(of: str, **changes: Any) -> Callable[[Entry], Entry]:
    def change(entry: Entry) -> Entry:
        columns = tuple(
            dg.TableColumn(**{"name": one.name, "type": one.type, "description": one.description} | changes)
            if one.name == of
            else one
            for one in entry.columns
        )
        event = dict(entry.event) | {"dagster/column_schema": dg.TableSchema(list(columns))}
        return replace(entry, columns=columns, event=event)

    return change


def origins_of(of: str, *origins: tuple[str, str]) -> Callable[[Entry], Entry]:
    """The lineage of one column, in spec and event, said otherwise."""

    def change(entry: Entry) -> Entry:
        said = [dg.TableColumnDep(dg.AssetKey([PREFIX, artifact]), name) for artifact, name in origins]
        other = dict(entry.lineage) | {of: said}
        event = dict(entry.event) | {"dagster/column_lineage": dg.TableColumnLineage(other)}
        return replace(entry, lineage=other, event=event)

    return change


def unfounded(entry: Entry) -> Entry:
    name, (words, _) = next(iter(entry.evaluations.items()))
    return replace(entry, evaluations={**entry.evaluations, name: (words, {})})


def tiny_plot(_text: str) -> str:
    file = io.BytesIO()
    Image.new("RGB", (20, 20)).save(file, "PNG")
    return f"![a](data:image/png;base64,{base64.b64encode(file.getvalue()).decode()})"


LABEL = f"kl_full, pa ({Q4})"
TAKEN: list[tuple[str, str, Callable[[Entry], Entry]]] = [
    ("description", "summaries", lambda entry: replace(entry, description="")),
    ("description", "summaries", lambda entry: replace(entry, description=entry.description.split("Study:")[0])),
    ("description", "summaries", lambda entry: replace(entry, description=f"The KL. {entry.description}")),
    ("description", "summaries", lambda entry: replace(entry, description=entry.description.replace("**arm** =", "**it** ="))),
    ("owner", "summaries", lambda entry: replace(entry, owners=())),
    ("kinds", "summaries", lambda entry: replace(entry, kinds=frozenset())),
    ("kinds", "summaries", lambda entry: replace(entry, kinds=frozenset("abcde"))),
    ("group", "summaries", lambda entry: replace(entry, group="default")),
    ("code_version", "summaries", lambda entry: replace(entry, code_version=None)),
    ("tags", "summaries", lambda entry: replace(entry, tags={})),
    ("tags", "scores", lambda entry: replace(entry, tags=dict(entry.tags) | {"engcmp/of": "study"})),
    ("tags", "captured_rows/pa", lambda entry: replace(entry, tags=dict(entry.tags) | {"engcmp/step_version": "9"})),
    ("lineage", "scores", without("dagster/column_lineage")),
    ("lineage", "scores", origins_of("kl_full")),
    ("lineage", "scores", origins_of("kl_full", ("scores", "nll"))),
    ("lineage", "scores", origins_of("kl_full", ("reference_rows", "nll"))),
    ("lineage", "scores", lambda entry: replace(entry, lineage={})),
    ("schema", "summaries", without("dagster/column_schema")),
    ("schema", "summaries", lambda entry: replace(entry, columns=())),
    ("schema", "scores", column("run", description="")),
    ("schema", "scores", column("run", type="")),
    ("schema", "scores", column("position", description="Row index r")),
    ("schema", "scores", column("kl_full", description="How far the two are apart [unit: nats]")),
    ("schema", "summaries", column("unit", name="of")),
    ("schema", "comparisons", lambda entry: replace(
        entry, event={name: value for name, value in entry.event.items() if not name.startswith("columns of ")}
    )),
    ("row_count", "scores", without("dagster/row_count")),
    ("row_count", "scores", said("dagster/row_count", lambda count: count - 1)),
    ("row_count", "publication", said("dagster/row_count", lambda count: count + 1)),
    ("figures", "summaries", without(LABEL)),
    ("figures", "summaries", said(LABEL, lambda value: value * 2)),
    ("figures", "summaries", lambda entry: replace(entry, event={**entry.event, "kl_full": 0.5})),
    ("figures", "summaries", without("every_figure")),
    ("figures", "summaries", said("figures", lambda table: table.replace(Q4, ""))),
    ("figures", "publication", said("figures", lambda table: table.replace(Q8, ""))),
    ("figures", "comparisons", without("figures")),
    ("plot", "tails", without("plot")),
    ("plot", "tails", said("plot", tiny_plot)),
    ("sha256", "sources", said("outputs", lambda table: "\n".join(table.splitlines()[:-1]))),
    ("sha256", "sources", without("frozen_sha256")),
    ("receipt", "scores", without("receipt")),
    ("receipt", "scores", said("receipt", lambda receipt: receipt | {"flags": ["none"]})),
    ("receipt", "scores", without("receipt_sha256")),
    ("chain", "scores", without("chain")),
    ("chain", "scores", said("chain", lambda text: text.replace("partition=q4_0", "partition=q2_k"))),
    ("chain", "scores", said("chain", lambda text: text.replace(f"/{PREFIX}/sources", f"/{PREFIX}/source"))),
    ("chain", "scores", said("chain", lambda text: "\n".join(
        line for line in text.splitlines() if "[frozen_protocol]" not in line
    ))),
    ("chain", "scores", said("chain", lambda text: text.split("Frozen hash")[0])),
    ("checks", "scores", lambda entry: replace(entry, checks={})),
    ("checks", "scores", lambda entry: replace(entry, checks={**entry.checks, "alignment": ""})),
    ("evidence", "scores", lambda entry: replace(entry, evaluations={})),
    ("evidence", "scores", unfounded),
    ("state", "scores", without("state")),
    ("state", "scores", said("state", lambda text: "made in this run")),
    ("state", "scores", lambda entry: replace(entry, event={"figures": "", **entry.event})),
    ("matrix", "summaries", without("matrix")),
    ("matrix", "publication", said("matrix", lambda text: text.replace("b8672)", "b0)"))),
]  # fmt: skip


@pytest.mark.parametrize(("field", "artifact", "take"), TAKEN, ids=[f"{i}-{one[0]}" for i, one in enumerate(TAKEN)])
def test_the_walk_names_what_was_taken_away(
    catalog: Catalog, field: str, artifact: str, take: Callable[[Entry], Entry]
) -> None:
    entry = catalog.entries[artifact]
    assert walk(entry) == []
    assert any(fault.startswith(f"{artifact}: {field}: ") for fault in walk(take(entry)))


def test_every_field_is_taken_away_once() -> None:
    assert {field for field, _, _ in TAKEN} == set(FIELDS)


# ---------------------------------------------------------------- what was made, what failed, and the matrix


def test_what_a_run_has_made_itself_says_so_and_a_later_one_names_it(catalog: Catalog) -> None:
    forget(catalog.home, LONE, ["tails"])
    tails = [dg.AssetKey([PREFIX, "tails"])]
    first = catalog.run(f"{PREFIX}_arm", LONE, asset_selection=tails)
    shown = catalog.event("tails", LONE)
    assert (shown["state"], shown["answered_from_store"]) == ("made in this run", False)
    catalog.run(f"{PREFIX}_arm", LONE, asset_selection=tails)
    shown = catalog.event("tails", LONE)
    assert shown["state"].endswith(f"by run {first.run_id[:8]})") and shown["answered_from_store"] is True


def test_what_another_arm_s_run_has_made_names_that_run(catalog: Catalog) -> None:
    """The reference's rows are made once; every other arm is answered by that receipt."""
    origins = {}
    for arm in map(str, catalog.study.protocol.arm_keys):
        shown = catalog.shown("reference_rows", arm)
        origins[shown["receipt"]["answered_by"] or shown["receipt_sha256"]] = shown["state"]
    (state_of_all,) = set(origins.values())
    (maker,) = origins
    assert json.loads((catalog.home / "receipts" / f"{maker}.json").read_bytes())["run_id"][:8] in state_of_all


def cell_of(text: str, arm: str) -> str:
    """The cell that links to the arm's page, without its borders."""
    link = f"partition={arm.replace('/', '%2F').replace('@', '%40')})"
    return next(cell.strip(" |") for line in text.splitlines() for cell in line.split(" | ") if link in cell)


@pytest.mark.parametrize("artifact", ["summaries", "publication"])
def test_the_matrix_has_each_arm_s_published_figure_and_verdict(catalog: Catalog, artifact: str) -> None:
    text = catalog.entries[artifact].event["matrix"]
    published = (catalog.home / "views" / STUDY / "_study" / "publication" / "SUMMARY.md").read_text(encoding="utf-8")
    for arm in ARMS:
        match = re.search(r"\d\S* \[\S+, \S+\]", cell_of(text, arm))
        assert match and match[0] in published
    assert f"resolved: higher than `{Q8}`" in cell_of(text, Q4)
    if EVERY_ARM:
        assert "not resolved against `q4_0/llamacpp@b8672`" in cell_of(text, "q4_0/llamacpp@b10809")
        assert cell_of(text, LONE).endswith("; baseline")
    else:
        assert "this processor lacks an instruction" in cell_of(text, "q4_0/llamacpp@b8672")
    assert ("**" in cell_of(text, Q4)) is (artifact == "summaries") and "**" not in cell_of(text, Q8)
    assert "before the last measurement" not in text


def test_the_matrix_says_which_verdicts_are_older_than_the_measurement(catalog: Catalog, tmp_path: Path) -> None:
    """The comparisons were of another summary of this arm than the one that stands now."""
    other = replace(catalog, home=home_without_dagster(catalog.home, tmp_path / "home"))
    store = Store(other.home)
    session = Session(catalog.study, store, "other", lambda _text: None)
    compared = session.sound("comparisons", None)
    assert compared is not None
    inputs = [
        item | {"content_id": "0" * 64} if (item["artifact"], item["arm"]) == ("summaries", Q8) else item
        for item in compared.receipt["inputs"]
    ]
    store.commit(session.place("comparisons", None), {**compared.receipt, "inputs": inputs}, completes=None)
    text = other.shown("summaries", Q4)["matrix"]
    stale = "(before the last measurement)"
    assert cell_of(text, Q4).count(stale) == 1 and cell_of(text, Q8).count(stale) == 1  # both pairs that Q8 is in
    assert text.count(stale) == 2


def test_the_matrix_says_how_to_measure_what_is_missing_and_what_failed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(catalog, home=home_without_dagster(catalog.home, tmp_path / "home"))
    head_file(other.home, "summaries", LONE).unlink()
    head_file(other.home, "comparisons", None).unlink()
    damaged = head_file(other.home, "summaries", Q8)
    damaged.unlink()
    damaged.write_bytes(b"{}")
    text = other.shown("summaries", Q4)["matrix"]
    lone = cell_of(text, LONE)
    assert lone.startswith("[not measured](") and f"): engcmp run {STUDY} --arm {LONE};" in lone
    assert lone.endswith("; baseline") is EVERY_ARM  # of b8672 alone it can be said
    assert cell_of(text, Q8).startswith("[failed](")
    assert f"not compared yet against `{Q8}`" in cell_of(text, Q4)

    fail_on_an_edited_text(catalog, LONE, tmp_path, monkeypatch)
    failed = cell_of(other.shown("summaries", Q4, instance=catalog.instance)["matrix"], LONE)
    (run,) = catalog.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    assert "[failed](" in failed and f"run {run.run_id[:8]} failed" in failed


def test_an_arm_that_failed_and_then_succeeded_has_not_failed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on_an_edited_text(catalog, Q4, tmp_path, monkeypatch)
    assert set(events.failed_arms(catalog.instance, catalog.study, [Q8, Q4])) == {Q4}
    assert events.failed_arms(catalog.instance, catalog.study, [Q8]) == {}
    catalog.run(f"{PREFIX}_arm", Q4)
    assert events.failed_arms(catalog.instance, catalog.study, [Q8, Q4]) == {}


def test_a_failure_shows_what_where_and_remedy_apart_and_one_line(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fail_on_an_edited_text(catalog, Q4, tmp_path, monkeypatch)
    (event,) = [event for event in result.all_events if event.event_type_value == "STEP_FAILURE"]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None and failure.description is not None
    parts = {name: value.value for name, value in failure.metadata.items()}
    assert set(parts) == {"what", "where", "remedy"}
    assert failure.description == f"{parts['what']} ({parts['where']}); {parts['remedy']}"
    assert "\n" not in failure.description
    catalog.run(f"{PREFIX}_arm", Q4)


def fail_on_an_edited_text(
    catalog: Catalog, arm: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dg.ExecuteInProcessResult:
    """A run of the arm that its first asset stops: a text of the protocol was edited after the freeze."""
    shutil.copytree(catalog.study.folder.parent, folder / "protocol")
    text = next((folder / "protocol" / STUDY / "texts").glob("*.txt"))
    text.write_text(text.read_text(encoding="utf-8") + "an edit", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setenv("ENGCMP_PROTOCOL", str(folder / "protocol"))
        return catalog.run(f"{PREFIX}_arm", arm, raise_on_error=False)
