"""Dagster's event log held against the receipts: every materialization must be of a run, and say what its receipt says.

The receipts are the authority. An event adds nothing to them, but it is what a reader sees, and anyone who reaches the UI can
report one. Not checked, because nothing in the store says it: an event's plot, matrix of arms, descriptions and checks;
observations; which event an input was (Dagster's pointer names the upstream's last event of any partition); and, where a run's own
log is gone, more of the event's origin than that the run had planned it.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engcmp_assets.audit.collect import TOMBSTONE_SCHEMA
from engcmp_assets.audit.dagster_events import LOG, Event, EventLog, open_log
from engcmp_assets.audit.reached import Problem, Reached, Receipt
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import ALL, ENGINE_VERSIONS
from engcmp_assets.kernel.progress import Progress, Say
from engcmp_assets.kernel.receipts import check_receipt
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import sound_receipt
from engcmp_assets.steps import steps_of
from engcmp_resources.canonical import parse_canonical, sha256_bytes, sha256_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Store

REMEDY = (
    "end the UI and move dagster/ away (no result lies in it), or wipe the asset's events: "
    "DAGSTER_HOME=ENGCMP_HOME/dagster dagster asset wipe KEY"
)
_INPUT = "dagster/input_data_version/"
# Dagster's word for an input that it had never seen, and the number of partitions from which on it does not look at each.
_NEVER_SEEN, _MANY = "INITIAL", 100
# An arm that Dagster has not seen is missing in what it records of all arms: each choice of arms is tried up to here.
_ARMS_CHOSEN_FROM = 10
# Figures in tables have four digits.
_SHOWN_DIGITS = 1e-3


@dataclass(frozen=True, slots=True)
class EventCounts:
    """How many events agree with their receipts, those among them whose receipt `engcmp gc` has removed (what it
    said stands in the event), and current artifacts that no event names.
    """

    agree: int
    collected: int
    current_without: int


@dataclass(slots=True)
class _Seen:
    """The data versions that the log held of each artifact so far: when, of which partition, and which."""

    versions: dict[str, list[tuple[float, str | None, str]]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        version = event.tags.get("dagster/data_version")
        if version is not None:
            self.versions.setdefault(event.asset, []).append((event.timestamp, event.partition, version))

    def states(self, artifact: str, since: float) -> Iterator[dict[str | None, str]]:
        """The latest version of each partition, now and back through each moment since `since`; the last key is the newest."""
        known = self.versions.get(artifact, [])
        for end in range(len(known), -1, -1):
            state: dict[str | None, str] = {}
            for _, partition, version in known[:end]:
                state.pop(partition, None)
                state[partition] = version
            yield state
            if end == 0 or known[end - 1][0] < since:
                return


def event_problems(
    study: Study, store: Store, reached: Reached, say: Say, clock_ns: Callable[[], int]
) -> tuple[EventCounts | None, list[Problem]]:
    """Hold every materialization event of the study's assets against the store; None for a home without a log.

    At most one problem for each event, which names its asset, partition and time.
    """
    if not (store.home / LOG).is_file():
        return None, []
    prefix = study.protocol.asset_prefix
    try:
        with open_log(store.home, prefix) as log:
            judge = _Judge(study, store, reached, log)
            progress, problems = Progress(say, "verify", "events", len(log), clock_ns), []
            for done, event in enumerate(log.events(), start=1):
                fault = judge.fault(event)
                if fault is not None:
                    problems.append(Problem(LOG, f"{prefix}/{_named(event)}: {fault}; {REMEDY}"))
                progress.update(done, "holding Dagster's events against their receipts")
            for kind, artifact, partition, at in log.by_hand():
                place = _placed(artifact, partition, at)
                problems.append(
                    Problem(LOG, f"{prefix}/{place}: forged {kind}: reported by hand, no run has made it; {REMEDY}")
                )
    except EngcmpError as error:
        return None, [Problem(LOG, f"{error.what}; {error.remedy}")]
    return judge.counts(), problems


class _Judge:
    """Takes the events in their order, and says of each what is wrong with it."""

    def __init__(self, study: Study, store: Store, reached: Reached, log: EventLog) -> None:
        self._study, self._store, self._reached, self._log = study, store, reached, log
        self._seen = _Seen()
        self._removed = _removed(store)
        self._named: set[str] = set()
        self._collected = self._agree = 0
        every = (*reached.receipts.values(), *reached.history.values())
        self._artifacts = {step.artifact for step in steps_of(study)} | {receipt["artifact"] for receipt in every}

    def counts(self) -> EventCounts:
        # The look for new engine versions is observed, never materialized.
        current = {sha256 for place, sha256, _ in self._reached.current() if place.artifact != ENGINE_VERSIONS}
        without = len(current - self._named)
        return EventCounts(self._agree, self._collected, without)

    def fault(self, event: Event) -> str | None:
        """The first thing that is wrong with the event; None where it agrees with its receipt."""
        found = next(self._faults(event), None)
        self._seen.add(event)
        self._agree += found is None
        return found

    def _faults(self, event: Event) -> Iterator[str]:
        yield from self._origin_faults(event)
        sha256, receipt = event.metadata.get("receipt_sha256"), event.metadata.get("receipt")
        if not isinstance(receipt, dict) or _hash_of(receipt) != sha256:
            yield "what it shows as its receipt does not have the hash that it names"
            return
        collected = not self._holds(str(sha256))
        if collected:
            if sha256 not in self._removed:
                yield f"it names receipt {str(sha256)[:12]}, which this store does not hold"
                return
            try:
                check_receipt(receipt, where=LOG)  # what the store holds was checked when it was read
            except EngcmpError as error:
                yield error.what
                return
        self._named.add(str(sha256))
        yield from _odd(event, receipt, self._study.folder.name)
        if receipt["run_id"] != event.run_id and event.metadata.get("answered_from_store") is not True:
            yield f"its receipt is of run {receipt['run_id'][:8]}, and it does not say that it was answered from the store"
        yield from _figure_faults(event, receipt)
        yield from self._input_faults(event, receipt)
        self._collected += collected

    def _origin_faults(self, event: Event) -> Iterator[str]:
        if not event.run_id:
            yield "forged: reported by hand, no run has made it"
        elif event.run_id not in self._log.runs:
            yield f"its run {event.run_id[:8]} is unknown to Dagster"
        elif event.fault is not None:
            yield event.fault
        elif not self._log.is_of_its_run(event):
            yield f"the log of its run {event.run_id[:8]} does not hold it"
        elif event.asset not in self._artifacts:
            yield "the study has no such artifact"

    def _holds(self, sha256: str) -> bool:
        """Whether the store has the receipt; one that was written since the heads were read is read now."""
        if sha256 in self._reached.receipts or sha256 in self._reached.history:
            return True
        try:
            sound_receipt(self._store, sha256)
        except EngcmpError:
            return False
        return True

    def _input_faults(self, event: Event, receipt: Receipt) -> Iterator[str]:
        """Recorded data versions of inputs must be those of the receipt's inputs, or the latest that the log itself held.

        The latter differ from the receipt's where Dagster has missed something: a run that was killed before its event, or a
        log that was thrown away. Those of an upstream whose events were wiped since are not judged.
        """
        taken: dict[str, dict[str | None, str]] = {}
        for item in sorted(receipt["inputs"], key=lambda item: item["arm"] or ""):
            version = receipt["frozen_sha256"] if item["artifact"] == "frozen_protocol" else item["content_id"]
            taken.setdefault(item["artifact"], {})[item["arm"]] = version
        below = f"{_INPUT}{self._study.protocol.asset_prefix}/"
        told = {name.removeprefix(below): value for name, value in event.tags.items() if name.startswith(_INPUT)}
        for artifact in sorted({*told, *taken}):
            if self._log.wiped.get(artifact, -math.inf) > event.timestamp:
                continue
            if artifact not in told:
                yield f"it does not say which {artifact} went into it"
            elif not self._explained(event, artifact, taken.get(artifact, {}), told[artifact]):
                yield f"it says that {artifact} {told[artifact][:12]} went into it, and its receipt says otherwise"

    def _explained(self, event: Event, artifact: str, taken: Mapping[str | None, str], told: str) -> bool:
        many = self._log.arms >= _MANY
        if told in _recorded(taken, event.partition, any_of_many=many):
            return True
        states = self._seen.states(artifact, self._log.started(event))
        if any(told in _recorded(state, event.partition, any_of_many=many) for state in states):
            return True
        if event.partition is not None or not 1 < len(taken) <= _ARMS_CHOSEN_FROM:
            return False
        chosen = (itertools.combinations(taken.items(), count) for count in range(len(taken)))
        return any(told in _recorded(dict(some), None) for some in itertools.chain.from_iterable(chosen))


def _recorded(versions: Mapping[str | None, str], arm: str | None, *, any_of_many: bool = False) -> set[str]:
    """What Dagster may record of an upstream whose partitions have these data versions, in an event of `arm` (None: of the study).

    Of an upstream without partitions its version; of one with partitions the SHA-256 of the versions it read, joined in the order
    of their partitions, also where that is one (within one step it is the version itself). Of 100 partitions or more it is the
    version of whichever was made last: then any is accepted.
    """
    if not versions:
        return {_NEVER_SEEN, _joined()}
    if None in versions:
        return {versions[None], _joined(versions[None])}
    if arm is not None:
        return {versions[arm], _joined(versions[arm])} if arm in versions else {_joined()}
    ordered = [version for _, version in sorted(versions.items(), key=lambda item: str(item[0]))]
    return {_joined(*ordered), *(ordered if any_of_many else ())}


def _joined(*versions: str) -> str:
    return hashlib.sha256("".join(versions).encode("utf-8")).hexdigest()


def _odd(event: Event, receipt: Receipt, study: str) -> Iterator[str]:
    """Where the event says something else of itself than its receipt."""
    version = receipt["frozen_sha256"] if receipt["artifact"] == "frozen_protocol" else receipt["content_id"]
    pairs = (
        ("study", study, receipt["study"]),
        ("artifact", event.asset, receipt["artifact"]),
        ("partition", event.partition, receipt["arm"]),
        ("data version", event.tags.get("dagster/data_version"), version),
        ("shown data version", event.metadata.get("data_version"), version),
        ("frozen hash", event.metadata.get("frozen_sha256"), receipt["frozen_sha256"]),
    )
    for name, told, own in pairs:
        if told != own:
            yield f"its {name} is {str(told)[:40]}, that of its receipt {str(own)[:40]}"


def _figure_faults(event: Event, receipt: Receipt) -> Iterator[str]:
    """Every number under a measure's name, plotted or in a table of figures, must be one of the receipt's."""
    for label, number in event.numbers.items():
        measure, _, rest = label.partition(",")
        if measure in MEASURES:
            own = [
                f["value"]
                for f in receipt["figures"]
                if f["population"] == ALL and _is_named(f, receipt, measure, rest)
            ]
            if number not in own:
                yield f"it shows {label} as {number!r}, and its receipt does not"
    rows = event.metadata.get("dagster/row_count")
    if rows is not None and rows not in list(_row_counts(receipt)):
        yield f"it shows {rows} rows, and its receipt does not"
    for label, text in event.metadata.items():
        if "figure" in label and isinstance(text, str):
            yield from (
                f"its table `{label}` shows {line!r}, and its receipt does not" for line in _odd_lines(text, receipt)
            )


def _row_counts(receipt: Receipt) -> set[int]:
    """The rows of each table, and those of all tables of some kinds together: which an asset shows is for its columns to say."""
    tables = [output for output in receipt["outputs"] if output["rows"] is not None]
    of_kind: dict[tuple[str, ...], int] = {}
    for output in tables:
        kind = tuple(column["name"] for column in output["columns"])
        of_kind[kind] = of_kind.get(kind, 0) + output["rows"]
    some = (itertools.combinations(of_kind.values(), count) for count in range(1, len(of_kind) + 1))
    return {*(output["rows"] for output in tables), *map(sum, itertools.chain.from_iterable(some))}


def _is_named(figure: Mapping[str, Any], receipt: Receipt, measure: str, rest: str) -> bool:
    """Whether a label is of this figure: labels hold panel and arm, in whatever form."""
    return figure["measure"] == measure and figure["panel"] in rest and _arm_of(figure, receipt) in rest


def _arm_of(figure: Mapping[str, Any], receipt: Receipt) -> str:
    return str(figure["details"].get("arm", receipt["arm"] or ""))


def _odd_lines(table: str, receipt: Receipt) -> Iterator[str]:
    """Lines of a Markdown table that are of a figure and do not show its value: by id, or by measure, panel and arm over all rows."""
    by_id = {figure["figure_id"]: figure for figure in receipt["figures"]}
    over_all: dict[tuple[str, str, str], list[Any]] = {}
    for figure in receipt["figures"]:
        if figure["population"] == ALL:
            name = (figure["measure"], figure["panel"], _arm_of(figure, receipt))
            over_all.setdefault(name, []).append(figure["value"])
    for line in table.splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if cells[0] not in MEASURES:
            continue
        named = [by_id[cell]["value"] for cell in cells if cell in by_id]
        if not named:
            keys = itertools.product(cells[:1], cells[1:], cells[1:])
            named = [value for key in {*keys} for value in over_all.get(key, ())]
        if not any(_shows(cell, value) for cell in cells for value in named):
            yield line[:120]


def _shows(cell: str, value: Any) -> bool:
    if isinstance(value, dict):
        return cell.endswith(str(value["missing"]))
    try:
        return math.isclose(float(cell.replace(",", "")), value, rel_tol=_SHOWN_DIGITS)
    except ValueError:
        return False


def _hash_of(receipt: Mapping[str, Any]) -> str | None:
    try:
        return sha256_of(receipt)
    except EngcmpError:
        return None  # it holds what no receipt can hold


def _removed(store: Store) -> set[str]:
    """The receipts that `engcmp gc` has removed, as its tombstones say; a tombstone that was changed says nothing."""
    found: set[str] = set()
    for path in sorted((store.home / "tombstones").glob("*.json")):
        try:
            data = path.read_bytes()
            tombstone = parse_canonical(data, what="tombstone", where=str(path), remedy="restore it from a copy")
            if sha256_bytes(data) == path.stem and tombstone["schema"] == TOMBSTONE_SCHEMA:
                found |= set(tombstone["receipts"])
        except (OSError, LookupError, TypeError, EngcmpError):
            continue
    return found


def _named(event: Event) -> str:
    return _placed(event.asset, event.partition, event.timestamp)


def _placed(asset: str, partition: str | None, timestamp: float) -> str:
    """`scores, q4_0/llamacpp@b11549, 2026-11-29 16:20:47 UTC`, on one line whatever a forger has written."""
    at = datetime.datetime.fromtimestamp(timestamp, datetime.UTC).isoformat(sep=" ", timespec="seconds")
    text = f"{asset}, {partition or 'no partition'}, {at.removesuffix('+00:00')} UTC"
    return text if text.isprintable() else ascii(text)
