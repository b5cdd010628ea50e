"""What a new version of an engine is told about by itself: it left its bar, its rows changed, it is slower, its launch differs.

Only the newest version of each checkpoint and engine that is compared with another version is looked at: what older ones did is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engcmp_assets.kernel.differences import EQUAL_KEPT
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.records import ArmKey, Check, Missing
from engcmp_assets.kernel.release_rules import order_of
from engcmp_assets.kernel.review.paired_bar import PairedBar
from engcmp_resources.canonical import sha256_of

Pair = Mapping[str, Any]
IN_BAR, SAME_ROWS, NOT_SLOWER, DECLARED = (
    "new_version_within_its_bar", "new_version_gives_the_same_rows", "new_version_not_slower", "new_launch_as_declared",
)  # fmt: skip
ALERTS = {
    IN_BAR: "The newest version stays within its bar against the version before: the paired bar, or the primary look where there is none",
    SAME_ROWS: "The newest version gives the rows of the version before bit for bit, where that gave those of the one before it",
    NOT_SLOWER: "No cell of the newest version is slower than the version before by more than the noise band",
    DECLARED: "The launches of the newest version and the version before differ in nothing but what the protocol declares",
}
"""The checks by name: each fails with a paragraph for each pair."""
_IDENTICAL = "rows_bit_identical"
_SHOWN = 5
# What engines call their own version: between two versions it always differs, and the protocol asks for that.
_OF_THE_VERSION = frozenset({"version", "build_info", "ggml_version", "llama_version"})


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing to be told. `key` is another one where the same thing is told of other results."""

    check: str
    pair_id: str
    text: str
    key: str


def newest_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """The compared pairs of two versions, else alike, whose candidate is the newest version that is compared so."""
    found: dict[tuple[str, str, str | None], list[Pair]] = {}
    for pair in pairs:
        one = ArmKey.parse(pair["candidate"])
        if pair["state"] == "compared" and _of_two_versions(pair):
            found.setdefault((one.checkpoint, one.engine, one.setting), []).append(pair)
    newest = []
    for own in found.values():
        last = max(order_of(ArmKey.parse(pair["candidate"]).version) for pair in own)
        newest += [pair for pair in own if order_of(ArmKey.parse(pair["candidate"]).version) == last]
    return newest


def alerts_of(pairs: Sequence[Pair], bars: Mapping[str, PairedBar | Missing]) -> list[Alert]:
    """Everything that the newest versions are told about; `bars` is the paired bar of each of their pairs, or why it has none."""
    return [
        alert for pair in newest_pairs(pairs) for alert in _of_pair(pair, pairs, bars.get(pair["pair_id"], _NO_BAR))
    ]


def alert_checks(pairs: Sequence[Pair], bars: Mapping[str, PairedBar | Missing], link: str) -> list[Check]:
    """The alerts as checks, all four always: each with its paragraphs and the link to where the pair is shown."""
    alerts, looked = alerts_of(pairs, bars), [pair["pair_id"] for pair in newest_pairs(pairs)]
    none = "No two versions of one engine are compared yet" if not looked else f"Nothing to tell of {', '.join(looked)}"
    checks = []
    for name in ALERTS:
        own = [one for one in alerts if one.check == name]
        text = "\n\n".join(one.text for one in own) or none
        evidence = {"link": link, "pairs": ", ".join(dict.fromkeys(one.pair_id for one in own) if own else looked)}
        checks.append(Check(name, not own, text, evidence))
    return checks


_NO_BAR = Missing("the bar was not read")


def _of_pair(pair: Pair, pairs: Sequence[Pair], bar: PairedBar | Missing) -> Iterator[Alert]:
    for check, text in (
        (IN_BAR, _out_of_bar(pair, bar)), (SAME_ROWS, _other_rows(pair, pairs)), (NOT_SLOWER, _slower(pair)), (DECLARED, _undeclared(pair)),
    ):  # fmt: skip
        if text is not None:
            whole = f"{pair['candidate']} against {pair['baseline']}: {text}"
            yield Alert(check, pair["pair_id"], whole, sha256_of([check, pair["pair_id"], whole]))


def _out_of_bar(pair: Pair, bar: PairedBar | Missing) -> str | None:
    if not isinstance(bar, Missing):
        return (
            None
            if bar.verdict == "within bar"
            else f"the new version is not shown within its paired bar. {bar.sentence}"
        )
    worse = [one for one in pair["figures"] if one.get("primary") and one["population"] == ALL and _is_worse(one)]
    if not worse:
        return None
    figure, ends = worse[0], worse[0].get("interval") or {}
    between = f" [{format_number(ends['low'])}, {format_number(ends['high'])}]" if "low" in ends else ""
    return (
        f"the new version reads worse by {figure['measure']}, all rows of panel {figure['panel']}: {format_number(figure['value'])} "
        f"{figure['unit']}{between}, {figure['verdict']}. No paired bar can be read here ({bar.reason}), so the primary look stands for it."
    )


def _is_worse(figure: Mapping[str, Any]) -> bool:
    value, better = figure["value"], MEASURES[figure["measure"]].better
    stands = str(figure.get("verdict")).split(",", 1)[0] in ("resolved", "baseline-dependent")
    return stands and isinstance(value, float | int) and (value > 0) == (better == "lower") and better != "neither"


def _other_rows(pair: Pair, pairs: Sequence[Pair]) -> str | None:
    before = [
        one for one in pairs if one["candidate"] == pair["baseline"] and _of_two_versions(one) and _identical(one)
    ]
    if not before or _identical(pair):
        return None
    shares = "; ".join(
        f"panel {one['panel']}: {round(one['value'] * one['rows']):,} of {one['rows']:,} rows"
        for one in pair["figures"]
        if one["measure"] == _IDENTICAL and one["population"] == ALL and isinstance(one["value"], float | int)
    )
    last = before[0]
    seen = ", as far as its API returns rows" if any(map(_of_an_api, last["figures"])) else ""
    return (
        f"the rows are not those of the version before (equal bit for bit: {shares or 'no share was read'}), while {last['candidate']} "
        f"gave every row of {last['baseline']}{seen}. What the launches differ in, or the version itself, changed the arithmetic."
    )


def _of_two_versions(pair: Pair) -> bool:
    """Whether the pair is of two versions of one engine on one checkpoint, under one setting."""
    one, other = ArmKey.parse(pair["candidate"]), ArmKey.parse(pair["baseline"])
    alike = (one.checkpoint, one.engine, one.setting) == (other.checkpoint, other.engine, other.setting)
    return alike and order_of(one.version) > order_of(other.version)


def _identical(pair: Pair) -> bool:
    """Whether every row of every panel is equal bit for bit: the whole row, or what an API returned of it."""
    whole = [one for one in pair["figures"] if one["population"] == ALL]
    equal = {
        one["panel"] for one in whole if str(one["verdict"]).split(",", 1)[0] == "bit-identical" or _of_an_api(one)
    }
    return bool(whole) and {one["panel"] for one in whole} == equal


def _of_an_api(figure: Mapping[str, Any]) -> bool:
    return figure.get("sentence") == EQUAL_KEPT[1]


def _slower(pair: Pair) -> str | None:
    figures = (pair.get("speed") or {}).get("figures", ())
    slow = [one for one in figures if one["verdict"] == "slower" and isinstance(one["value"], float | int)]
    if not slow:
        return None
    told = ", ".join(f"{one['population']} {one['measure']} {one['value']:.3g} times" for one in slow[:_SHOWN])
    more = f" and {len(slow) - _SHOWN} more" if len(slow) > _SHOWN else ""
    band = next((one["floor"]["band"] for one in slow if isinstance(one["floor"].get("band"), list)), None)
    within = f", beyond the noise band of {band[0]:.3g} to {band[1]:.3g}" if band else ""
    return f"{len(slow)} of {len(figures)} speeds are slower{within}: {told}{more}."


def _undeclared(pair: Pair) -> str | None:
    names = [one for one in pair.get("undeclared") or () if one.rsplit(".", 1)[-1] not in _OF_THE_VERSION]
    if not names:
        return None
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"the launches differ in {', '.join(names[:_SHOWN])}{more}, which the protocol does not declare: whatever the pair reads may come "
        "from that. `engcmp launch diff` shows both sides."
    )
