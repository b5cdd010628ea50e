"""What a listing of releases means for a study: which tags are new, and which known ones are no longer what they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engcmp_assets.kernel.iterations import IterationFile
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.release_rules import ReleaseRule, order_of
from engcmp_assets.kernel.source_tables import ListedSource, RepositorySource, Source, WheelSource

State = Literal[
    "in the study", "waiting for approval", "declined", "new", "pushed again", "does not count", "withdrawn", "gone"
]
# What a candidate is written for.
ACTIONABLE: tuple[State, ...] = ("new", "pushed again")
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag as a place shows it (see `engcmp_resources.releases.base.Release`); `files` are names to SHA-256."""

    tag: str
    digest: str | None
    files: Mapping[str, str | None] = field(default_factory=dict)
    withdrawn: str | None = None
    prerelease: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """A version that the study or one of its iterations pins: by files, or by one digest. `where` is None for the protocol."""

    version: str
    tag: str
    digest: str | None
    files: Mapping[str, str]
    state: State
    where: str | None

    def is_of(self, tag: Tag) -> bool:
        """Whether the tag still stands for what is pinned, as far as the place says."""
        if self.digest is not None:
            return tag.digest in (None, self.digest)
        return all(tag.files.get(name) in (None, sha256) for name, sha256 in self.files.items())


@dataclass(frozen=True, slots=True)
class Finding:
    """What one tag is for the study. `version` is the name that it has or would have; None where it does not count."""

    engine: str
    tag: str
    version: str | None
    state: State
    why: str
    digest: str | None
    iteration: str | None
    repushed: bool = False


def known_versions(
    protocol: Protocol, engine: str, rule: ReleaseRule, candidates: Mapping[str, IterationFile]
) -> list[Known]:
    """Every version of `engine` that comes from the rule's place.

    `protocol` is the frozen one with its frozen iterations; `candidates` are the iterations that are not frozen.
    """
    found = [
        known
        for name, entry in protocol.engines[engine].versions.items()
        if entry.source is not None
        and (known := _known(name, protocol.sources[entry.source], rule, "in the study", None)) is not None
    ]
    for iteration, adds in candidates.items():
        state: State = "waiting for approval" if adds.declined is None else "declined"
        for name, entry in adds.versions.get(engine, {}).items():
            source = adds.sources.get(entry.source or "")
            known = None if source is None else _known(name, source, rule, state, iteration)
            if known is not None:
                found.append(known)
    return found


def decide(engine: str, rule: ReleaseRule, tags: Iterable[Tag], known: Sequence[Known]) -> list[Finding]:
    """What each tag is, and each known version whose tag is not there any more; in the order of the tags."""
    shown = sorted(tags, key=lambda one: order_of(one.tag))
    findings = [_decide(engine, rule, tag, [one for one in known if one.tag == tag.tag]) for tag in shown]
    there = {tag.tag for tag in shown}
    for one in known:
        if one.tag not in there:
            why = "the place no longer shows this tag; what is pinned and measured of it stays"
            findings.append(Finding(engine, one.tag, one.version, "gone", why, one.digest, one.where))
    return findings


def _decide(engine: str, rule: ReleaseRule, tag: Tag, same_tag: Sequence[Known]) -> Finding:
    def found(state: State, why: str, version: str | None = None, where: str | None = None) -> Finding:
        return Finding(engine, tag.tag, version, state, why, tag.digest, where, repushed=repushed)

    changed = [one for one in same_tag if not one.is_of(tag)]
    repushed = bool(changed)
    for one in same_tag:
        if one.is_of(tag):
            words = [f"withdrawn by its makers: {tag.withdrawn}"] if tag.withdrawn else []
            words += [f"pushed again: {other.version} is the former content of this tag" for other in changed]
            return found(one.state, "; ".join(words), one.version, one.where)
    if changed:
        why = f"the tag stands for other content than {changed[0].version}, which stays as it is"
        return found("pushed again", why, f"{changed[0].version}-{(tag.digest or '').rsplit(':', 1)[-1][:8]}")
    reason = _why_not(rule, tag)
    return found(*reason) if reason is not None else found("new", "", rule.version_of(tag.tag))


def _why_not(rule: ReleaseRule, tag: Tag) -> tuple[State, str] | None:
    """Why an unknown tag is none that the study asks for; None where it is one."""
    if not rule.counts(tag.tag):
        late = rule.later_than is None or order_of(tag.tag) > order_of(rule.later_than)
        return "does not count", f"does not match {rule.tags}" if late else f"not later than {rule.later_than}"
    if tag.prerelease and not rule.prereleases:
        return "does not count", "a pre-release"
    if tag.withdrawn is not None:
        return "withdrawn", f"withdrawn by its makers: {tag.withdrawn}"
    if tag.digest is None:
        return "does not count", "the place states no hash for it, so that it cannot be pinned"
    if not rule.checkpoints_of(tag.tag):
        return "does not count", "it runs none of the study's checkpoints"
    return None


def _known(name: str, source: Source, rule: ReleaseRule, state: State, where: str | None) -> Known | None:
    if isinstance(source, WheelSource):
        files = {wheel.file: wheel.sha256 for wheel in source.wheels.values()}
        folder = rule.name if rule.place == "folder" else None
        same = rule.wheels and (source.package, source.find_links) == (rule.package_name, folder)
        return Known(name, source.version, None, files, state, where) if same else None
    if isinstance(source, RepositorySource):
        same = rule.place == "git" and source.repository == rule.name
        return Known(name, source.tag, f"git:{source.commit}", {}, state, where) if same else None
    if isinstance(source, ListedSource):  # its pin is not known: no release is held against it
        return None
    same = rule.place == "registry" and source.image == rule.name
    return Known(name, source.tag, source.digest, {}, state, where) if same else None


def tag_of(source: Source) -> str:
    """The tag that a source was taken from; the id of one whose pin is not known."""
    if isinstance(source, ListedSource):
        return source.listed
    return source.version if isinstance(source, WheelSource) else source.tag


def news_key(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """What is new or alarming in findings, as plain values: the same news must not be told twice."""
    return sorted((one.engine, one.tag, one.digest or "") for one in findings if one.state in ACTIONABLE)


def in_words(findings: Sequence[Finding]) -> str:
    """New and changed tags in one line."""
    named = [f"{one.engine} {one.tag} ({one.state})" for one in findings if one.state in ACTIONABLE]
    rest = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return (", ".join(named[:_SHOWN]) + rest) if named else "no new version"
