"""What is asked of `engcmp score`: arms, pairs and repeats as a user writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engcmp_resources.errors import EngcmpError

_ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]*")
_TAKEN = "reference"  # what errors and inputs call the reference
_TWO = 2
_MOST_NAME = 200  # characters of a file's name; file systems take 255 bytes


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a pair: an arm, or the mean over several runs of one, row by row."""

    arms: tuple[str, ...]

    def __str__(self) -> str:
        return self.arms[0] if len(self.arms) == 1 else f"mean({','.join(self.arms)})"

    @property
    def file_name(self) -> str:
        return self.arms[0] if len(self.arms) == 1 else f"mean-{'-'.join(self.arms)}"


@dataclass(frozen=True, slots=True)
class PairOf:
    """Difference = b - a."""

    a: Side
    b: Side

    def __str__(self) -> str:
        return f"{self.a},{self.b}"

    @property
    def file_name(self) -> str:
        return f"{self.a.file_name}-vs-{self.b.file_name}.json"


@dataclass(frozen=True, slots=True)
class GapOf:
    """How much of the gap from a baseline to a candidate a setting of the candidate closes."""

    baseline: Side
    candidate: Side
    setting: Side

    def __str__(self) -> str:
        return f"{self.baseline},{self.candidate},{self.setting}"

    @property
    def file_name(self) -> str:
        return f"gap-{self.baseline.file_name}-{self.candidate.file_name}-{self.setting.file_name}.json"


@dataclass(frozen=True, slots=True)
class Request:
    """Which arms there are, which pairs are compared, and which arms are repeats of which (`repeats`: arm to its repeats).

    `gaps` are of three arms each.
    """

    arms: tuple[str, ...]
    pairs: tuple[PairOf, ...]
    repeats: dict[str, tuple[str, ...]]
    gaps: tuple[GapOf, ...] = ()

    def row_pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs of single arms whose rows are held against each other: of each pair its first arms, and of each repeat."""
        wanted = [(pair.a.arms[0], pair.b.arms[0]) for pair in self.pairs]
        wanted += [(arm, again) for arm, others in self.repeats.items() for again in others]
        return tuple(dict.fromkeys(wanted))


def request(arms: Sequence[str], pairs: Sequence[str], repeats: Sequence[str], gaps: Sequence[str] = ()) -> Request:
    """Parse the options: `arms` are names, `pairs` as `A,B` or `mean(A,A2),B`, `repeats` as `A,A2`, `gaps` as `BASE,CANDIDATE,SETTING`.

    Raises EngcmpError that names the option for an arm that is not there, or is twice, for two results of one file name, and for anything
    that cannot be read.
    """
    for name in arms:
        if _ARM.fullmatch(name) is None or name == _TAKEN:
            raise EngcmpError(
                f"--arm {name!r} is {'the name of the reference' if name == _TAKEN else 'no name'}",
                remedy="use letters, digits and . _ + @ -, for example --arm V1=rows/v1",
            )
    if doubled := [name for name in arms if arms.count(name) > 1]:
        raise EngcmpError(f"--arm {doubled[0]} is given twice", remedy="give each arm a name of its own")
    parsed = tuple(dict.fromkeys(_pair(text, arms) for text in pairs))
    again: dict[str, tuple[str, ...]] = {}
    for text in repeats:
        names = _known(text.replace(" ", "").split(","), arms, f"--repeat {text}")
        if len(names) < _TWO:
            raise EngcmpError(f"--repeat {text!r} names one arm", remedy="write --repeat ARM,ITS_REPEAT")
        again[names[0]] = tuple(dict.fromkeys((*again.get(names[0], ()), *names[1:])))
    asked = Request(tuple(arms), parsed, again, tuple(dict.fromkeys(_gap(text, arms) for text in gaps)))
    _refuse_shared_files(asked)
    return asked


def _refuse_shared_files(asked: Request) -> None:
    """Raise EngcmpError for results that would lie in one file, also where a file system takes no note of capitals."""
    seen: dict[str, str] = {}
    names = [(f"{arm}.json", f"arm {arm}") for arm in asked.arms]
    names += [(pair.file_name, f"pair {pair}") for pair in asked.pairs]
    for name, owner in [*names, *((gap.file_name, f"gap {gap}") for gap in asked.gaps)]:
        if len(name) > _MOST_NAME:
            raise EngcmpError(
                f"{owner}: its file's name would have {len(name)} characters", remedy="give shorter names to the arms"
            )
        if other := seen.get(name.casefold()):
            raise EngcmpError(
                f"{other} and {owner} would share the file {name}", remedy="give one of the arms another name"
            )
        seen[name.casefold()] = owner


def _pair(text: str, arms: Sequence[str]) -> PairOf:
    a, b = _sides(text, arms, "--pair", "--pair A,B or --pair 'mean(A,A2),B'", count=2)
    if a == b:
        raise EngcmpError(
            f"--pair {text!r} compares an arm with itself", remedy="name two arms; for repeats use --repeat"
        )
    return PairOf(a, b)


def _gap(text: str, arms: Sequence[str]) -> GapOf:
    sides = _sides(text, arms, "--gap", "--gap BASE,CANDIDATE,SETTING", count=3)
    if len(set(sides)) != len(sides):
        raise EngcmpError(f"--gap {text!r} names an arm twice", remedy="name three arms: --gap BASE,CANDIDATE,SETTING")
    return GapOf(*sides)


def _sides(text: str, arms: Sequence[str], option: str, example: str, *, count: int) -> list[Side]:
    side = r"(mean\([^()]*\)|[^,()]+)"
    match = re.fullmatch(",".join([side] * count), text.replace(" ", ""))
    if match is None:
        raise EngcmpError(f"{option} {text!r} cannot be read", remedy=f"write {example}")
    return [_side(part, arms, f"{option} {text}") for part in match.groups()]


def _side(text: str, arms: Sequence[str], option: str) -> Side:
    names = text.removeprefix("mean(").removesuffix(")").split(",") if text.startswith("mean(") else [text]
    return Side(_known(names, arms, option))


def _known(names: Sequence[str], arms: Sequence[str], option: str) -> tuple[str, ...]:
    for name in names:
        if name not in arms:
            raise EngcmpError(f"{option}: there is no arm {name!r}", remedy=f"the arms are {', '.join(arms)}")
    if len(set(names)) != len(names):
        raise EngcmpError(f"{option}: an arm is named twice", remedy="name each arm once")
    return tuple(names)
