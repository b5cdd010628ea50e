"""What a study asks for, counted before anything is started: launches, requests, rows, bytes, and hours at declared rates.

Pure: it takes the protocol and the panels. What cannot be counted yet is `Missing`, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engcmp_assets.kernel.blocks import blocks_of_arm
from engcmp_assets.kernel.fields import ScorePath
from engcmp_assets.kernel.panels import passes
from engcmp_assets.kernel.planning_tables import EngineRates
from engcmp_assets.kernel.protocol import CapturePlan, PanelPlan, Protocol
from engcmp_assets.kernel.records import ArmKey, Missing, Panel
from engcmp_assets.kernel.reply_tables import ReplyPlan
from engcmp_assets.kernel.throughput_tables import ThroughputPlan

Count = int | Missing
_FLOAT16, _FLOAT32, _FLOAT64, _INDEX = 2, 4, 8, 4
_OWN_TOP = 20  # the most probable tokens that an engine's row keeps of its own
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """Rows that one launch keeps of a panel: `rows` of all its repeats, and their bytes where every repeat differs."""

    panel: str
    rows: Count
    bytes: Count


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """One start of the engine: what it is asked, and what is kept of it.

    `prompt_tokens` and `output_tokens` are those of all its requests together; `hours` are at the declared rates.
    """

    mode: Literal["scoring", "serving", "replies"]
    path: ScorePath | Literal["serving"]
    number: int
    repeats: int
    requests: Count
    prompt_tokens: Count
    output_tokens: Count
    captures: tuple[PlannedRows, ...]
    hours: float | Missing

    @property
    def bytes(self) -> Count:
        """Bytes of rows that it keeps at most."""
        return total(one.bytes for one in self.captures)


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """Everything that is asked of one arm's engine, launch by launch."""

    arm: str
    launches: tuple[PlannedLaunch, ...]
    rates_of: str | None = None
    """The other arm that the hours' rates were measured on; None where they are of this arm, or of none that is named."""

    @property
    def hours(self) -> float | Missing:
        return _hours(launch.hours for launch in self.launches)


@dataclass(frozen=True, slots=True)
class DeclaredPanel:
    """A panel of which only the protocol's own counts are known yet: its windows come from a data set that was not taken.

    `of` names the windows: panels with the same ones are served by one pass.
    """

    of: str
    vocab: int
    reference: str
    keep: str
    top_k: int | None
    windows: int
    rows: Count
    tokens: Count


AnyPanel = Panel | DeclaredPanel | Missing


def declared_panel(plan: PanelPlan) -> DeclaredPanel | None:
    """What the protocol says of a panel from outside; None for one that is made of the study's texts."""
    told = plan.external
    if told is None:
        return None
    rows = told.rows if told.rows is not None else Missing("the protocol does not state the panel's rows")
    each = told.tokens_per_window
    tokens = each * told.windows if each is not None else Missing("the protocol does not state the windows' tokens")
    of = f"{told.source}/{told.window}"
    return DeclaredPanel(of, told.vocab, plan.reference, plan.keep, plan.top_k, told.windows, rows, tokens)


def arm_plan(protocol: Protocol, arm: ArmKey, panels: Mapping[str, AnyPanel]) -> ArmPlan:
    """The plan of an arm, of the blocks that the protocol wants of it.

    `panels` has each panel of the protocol, what is declared of it, or why its windows are not known.
    """
    rates = protocol.rates.get(arm.engine)
    blocks = blocks_of_arm(protocol, arm)
    launches: list[PlannedLaunch] = []
    for path, plan in protocol.capture.plans if "q" in blocks else ():
        launches += [
            _scoring(path, plan, len(launches) + number, panels, rates) for number in range(1, plan.launches + 1)
        ]
    if "t" in blocks:
        launches += _serving(protocol.throughput, rates)
    if "l" in blocks and protocol.long_replies is not None:
        launches += _replies(protocol.long_replies, rates)
    of = rates.measured_on if rates and rates.measured_on != str(arm) else None
    return ArmPlan(str(arm), tuple(launches), of)


def row_bytes(panel: Panel | DeclaredPanel) -> int:
    """Bytes of one row as it is kept of an engine: the whole vocabulary, the values at a reference's ids, or the top 20."""
    if panel.keep == "light":
        return _OWN_TOP * (_INDEX + _FLOAT64) + _FLOAT64 + 2 * _INDEX
    if panel.reference != "topk":  # without a reference, engines are held against each other row by row
        return panel.vocab * _FLOAT32 + _INDEX
    own = _OWN_TOP * (_INDEX + _FLOAT32)
    return (panel.top_k or 0) * _FLOAT32 + own + _FLOAT32 + 3 * _FLOAT64 + 2 * _INDEX


def reference_bytes(panel: AnyPanel) -> Count:
    """Bytes of the reference's rows on a panel: whole rows, or the ids and values of its top K and the rest."""
    if isinstance(panel, Missing):
        return panel
    each = (panel.top_k or 0) * (_INDEX + _FLOAT16) + 2 * _FLOAT32 + 2 * _INDEX + 1
    if panel.reference == "full":
        each = panel.vocab * _FLOAT32 + _INDEX
    elif panel.reference == "none":
        each = 0
    return times(panel.rows, each)


def times(count: Count, by: int) -> Count:
    """A multiple of a count, or why there is none."""
    return count if isinstance(count, Missing) else count * by


def total(counts: Iterable[Count]) -> Count:
    """The sum, or the first reason why there is none."""
    found = 0
    for count in counts:
        if isinstance(count, Missing):
            return count
        found += count
    return found


def _scoring(
    path: ScorePath, plan: CapturePlan, number: int, panels: Mapping[str, AnyPanel], rates: EngineRates | None
) -> PlannedLaunch:
    captures = tuple(_rows(name, panels[name], plan.repeats) for name in plan.panels)
    requests, prompt, output = (times(count, plan.repeats) for count in _asked([panels[name] for name in plan.panels]))
    # On the decode path the rows that are kept are generated one by one, each from the text's own tokens before it.
    output = output if path == "decode" else 0
    hours = _launch_hours(rates, prompt, [(1, output)] if output != 0 else [])
    return PlannedLaunch("scoring", path, number, plan.repeats, requests, prompt, output, captures, hours)


def _asked(panels: Sequence[AnyPanel]) -> tuple[Count, Count, Count]:
    """Passes, their tokens, and the rows that any panel keeps of them: a window that several panels have is passed once."""
    unknown = next((panel for panel in panels if isinstance(panel, Missing)), None)
    if unknown is not None:
        return unknown, unknown, unknown
    once = passes([panel for panel in panels if isinstance(panel, Panel)])
    outside = {panel.of: panel for panel in panels if isinstance(panel, DeclaredPanel)}.values()
    return (
        len(once) + sum(panel.windows for panel in outside),
        total([*(len(one.tokens) for one in once), *(panel.tokens for panel in outside)]),
        total([*(len(one.positions) for one in once), *(panel.rows for panel in outside)]),
    )


def _rows(name: str, panel: AnyPanel, repeats: int) -> PlannedRows:
    if isinstance(panel, Missing):
        return PlannedRows(name, panel, panel)
    rows = times(panel.rows, repeats)
    return PlannedRows(name, rows, times(rows, row_bytes(panel)))


def _replies(plan: ReplyPlan, rates: EngineRates | None) -> Iterator[PlannedLaunch]:
    """A start for the long replies of every stage, each as long as it may be, and one for those that are made a second time.

    Task checks come on top and are not counted.
    """
    prompt = Missing("the prompts' tokens are known once the replies are planned")
    for number, counts in enumerate(
        ([plan.replies_of(one) for one in plan.stages], [one.again for one in plan.stages]), start=1
    ):
        if number == 1 or any(counts):
            output = len(plan.kinds) * sum(n * one.cap_tokens for n, one in zip(counts, plan.stages, strict=True))
            hours = _launch_hours(rates, 0, [(plan.concurrency, output)])
            requests = len(plan.kinds) * sum(counts)
            yield PlannedLaunch("replies", "serving", number, 1, requests, prompt, output, (), hours)


def _serving(plan: ThroughputPlan | None, rates: EngineRates | None) -> tuple[PlannedLaunch, ...]:
    """The starts of the speed block: one for each repeat, or one for all of them."""
    if plan is None:
        return ()
    # The first cell of each width is warmed up, with the length of that cell.
    warm = len(plan.concurrency) * plan.warmup
    requests = len(plan.cells) * plan.requests + warm
    timed = sum(cell.prompt_tokens for cell in plan.cells) * plan.requests
    prompt = timed + warm * plan.prompt_tokens[0]
    each = len(plan.prompt_tokens) * len(plan.kinds) * plan.requests
    output = [(width, (each + plan.warmup) * plan.output_tokens) for width in plan.concurrency]
    starts, repeats = (plan.repeats, 1) if plan.start_each_repeat else (1, plan.repeats)
    hours = _launch_hours(rates, prompt * repeats, [(width, tokens * repeats) for width, tokens in output])
    return tuple(
        PlannedLaunch(
            "serving", "serving", number, repeats, requests * repeats, prompt * repeats,
            sum(tokens for _, tokens in output) * repeats, (), hours,
        )
        for number in range(1, starts + 1)
    )  # fmt: skip


def _launch_hours(rates: EngineRates | None, prompt: Count, output: Sequence[tuple[int, Count]]) -> float | Missing:
    """Hours of one launch: its start, its prompts one after the other, and its output by requests at a time (width, tokens)."""
    if rates is None:
        return Missing("no rate declared")
    if rates.start_s is None or rates.prefill_tok_s is None:
        return Missing(f"no rate declared: {'start_s' if rates.start_s is None else 'prefill_tok_s'}")
    if isinstance(prompt, Missing):
        return prompt
    seconds = rates.start_s + prompt / rates.prefill_tok_s
    for width, tokens in output:
        if isinstance(tokens, Missing):
            return tokens
        rate = rates.decode_tok_s.get(str(width))
        if rate is None:
            return Missing(f"no rate declared: decode_tok_s of {width} at a time")
        seconds += tokens / rate
    return seconds / _HOUR_S


def _hours(found: Iterable[float | Missing]) -> float | Missing:
    seconds = 0.0
    for hours in found:
        if isinstance(hours, Missing):
            return hours
        seconds += hours
    return seconds
