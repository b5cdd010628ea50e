"""Which releases of an engine count, as the protocol says it, and which tags that is.

Pure: it takes tags and digests. Where they come from is `engcmp_resources.releases`.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from engcmp_assets.kernel.fields import Name, PlatformKey, Strict
from engcmp_resources.errors import EngcmpError

_DIGITS = re.compile(r"(\d+)")


class ReleaseRule(Strict):
    """`[releases.ENGINE]`: where new versions of an engine appear, which tags count, and what follows from one.

    `tags` must match the whole tag; `version` names the engine version by the groups of that pattern. `checkpoints` gives for each
    checkpoint the tags that can run it. A tag counts if it is later than `later_than`, number by number.
    """

    place: Literal["package_index", "git", "registry", "folder"]
    name: str = Field(min_length=1)
    package: str | None = None
    license: str = Field(min_length=1)
    member: str | None = None
    platforms: list[PlatformKey] = Field(default_factory=list)
    tags: str = Field(min_length=1)
    version: str = Field(min_length=1)
    later_than: str | None = None
    prereleases: bool = False
    checkpoints: dict[Name, str] = Field(min_length=1)
    baselines: list[Name] = Field(default_factory=list)
    approval: Literal["wait", "automatic"] = "wait"

    @property
    def wheels(self) -> bool:
        """Whether a release is wheels, from which one member is taken."""
        return self.place in ("package_index", "folder")

    @property
    def package_name(self) -> str:
        """The package whose wheels are the releases."""
        return self.package or self.name

    def counts(self, tag: str) -> bool:
        """Whether the tag is of the kind that the rule asks for, and late enough."""
        late = self.later_than is None or order_of(tag) > order_of(self.later_than)
        return late and re.fullmatch(self.tags, tag) is not None

    def version_of(self, tag: str) -> str:
        """The engine version that a tag that counts is called. Raises EngcmpError for a tag that does not count."""
        match = re.fullmatch(self.tags, tag)
        if match is None:
            raise EngcmpError(
                f"tag {tag!r} does not match {self.tags!r}", remedy="this is a fault of engcmp: report it"
            )
        return self.version.format(**match.groupdict(), tag=tag)

    def checkpoints_of(self, tag: str) -> tuple[str, ...]:
        """The checkpoints that a tag can run."""
        return tuple(name for name, pattern in self.checkpoints.items() if re.fullmatch(pattern, tag))


def order_of(tag: str) -> tuple[tuple[int, int | str], ...]:
    """A key that sorts tags as people read them: numbers by value, words by letter (`v1.10` after `v1.9`)."""
    parts = [part for part in _DIGITS.split(tag) if part]
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts)


def rule_fault(rule: ReleaseRule) -> tuple[str, str] | None:
    """The field of a rule that does not hold together and what is wrong with it, or None."""
    patterns = {"tags": rule.tags} | {f"checkpoints.{name}": pattern for name, pattern in rule.checkpoints.items()}
    for field, pattern in patterns.items():
        try:
            re.compile(pattern)
        except re.error as error:
            return field, f"is no regular expression: {error}"
    groups = dict.fromkeys(re.compile(rule.tags).groupindex, "1")
    try:
        rule.version.format(**groups, tag="1")
    except (KeyError, IndexError, ValueError) as error:
        return "version", f"uses {error}, which is no named group of tags"
    if rule.wheels and (rule.member is None or not rule.platforms):
        return "member", "and platforms must be given for releases that are wheels"
    if rule.place == "folder" and rule.package is None:
        return "package", "must be given for a folder of wheels"
    return None
