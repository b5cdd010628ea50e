"""A candidate iteration: the text of the file that adds a new engine version, its arms and their comparisons to a study."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engcmp_assets.engine_versions.decisions import Finding, tag_of
from engcmp_assets.kernel.iterations import IterationFile, parse_iteration
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.release_rules import ReleaseRule, order_of
from engcmp_resources.errors import EngcmpError


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """A wheel and its one member, by SHA-256."""

    file: str
    sha256: str
    member: str
    member_sha256: str


def candidate_name(finding: Finding) -> str:
    """Name of the iteration: `llamacpp-b11600`."""
    return f"{finding.engine}-{finding.version}"


def candidate_text(
    protocol: Protocol,
    rule: ReleaseRule,
    finding: Finding,
    *,
    place: str,
    wheels: Mapping[str, PinnedWheel],
) -> str:
    """The iteration as TOML. `wheels` are by platform, and empty for releases that are no wheels.

    Raises EngcmpError where the tag makes a version that cannot be part of an arm's name.
    """
    name, version = candidate_name(finding), str(finding.version)
    arms = [ArmKey.parse(f"{one}/{finding.engine}@{version}") for one in rule.checkpoints_of(finding.tag)]
    because = f"{finding.tag} was found at {place}" + (f": {finding.why}" if finding.why else "")
    lines = [
        f"# Written by the look for new versions. Approve: engcmp versions {protocol.study} --approve {name}",
        '# Decline: put a line `declined = "WHY"` below the schema.',
        *_table(None, {"schema": "engcmp.iteration/1", "because": because, "measure": True}),
        *_table(
            "release", {"engine": finding.engine, "tag": finding.tag, "digest": finding.digest or "", "place": place}
        ),
        *_source(rule, finding, name, wheels),
        *_table(f"versions.{finding.engine}.{_key(version)}", {"source": name}),
    ]
    for arm in arms:
        lines += _table("[arms]", {"arm": str(arm)})
        for other in _others(protocol, rule, finding, arm):
            lines += _table(
                "[comparisons]",
                {
                    "pair_id": f"{version}-vs-{other.version}-{arm.checkpoint}",
                    "label": f"{protocol.engines[finding.engine].label} {version} beside {other.version}, {arm.checkpoint}",
                    "candidate": str(arm),
                    "baseline": str(other),
                },
            )
    text = "\n".join(lines) + "\n"
    parse_iteration(text.encode("utf-8"), where=f"the candidate {name}")
    return text


def _source(rule: ReleaseRule, finding: Finding, name: str, wheels: Mapping[str, PinnedWheel]) -> list[str]:
    table = f"sources.{_key(name)}"
    if not rule.wheels:
        kind, value = (finding.digest or ":").split(":", 1)
        own = (
            {"repository": rule.name, "tag": finding.tag, "commit": value}
            if rule.place == "git"
            else {"image": rule.name, "tag": finding.tag, "digest": f"{kind}:{value}"}
        )
        return _table(table, own | {"license": rule.license})
    if not wheels:
        raise EngcmpError(
            f"{finding.tag} has no wheel for {', '.join(rule.platforms)}", where=f"releases.{finding.engine}",
            remedy="name its platforms in the protocol, or leave the tag out by `tags`",
        )  # fmt: skip
    fields = {"package": rule.package_name, "version": finding.tag, "license": rule.license}
    lines = _table(table, fields | ({"find_links": rule.name} if rule.place == "folder" else {}))
    for platform, wheel in wheels.items():
        own = {"file": wheel.file, "sha256": wheel.sha256, "member": wheel.member, "member_sha256": wheel.member_sha256}
        lines += _table(f"{table}.wheels.{platform}", own)
    return lines


def _others(protocol: Protocol, rule: ReleaseRule, finding: Finding, arm: ArmKey) -> list[ArmKey]:
    """What the new arm is compared with: the content that its tag had before, else the last version, and the baselines."""
    versions = protocol.engines[arm.engine].versions
    tags = {
        name: tag_of(protocol.sources[entry.source]) for name, entry in versions.items() if entry.source is not None
    }
    measured = [one for one in protocol.arm_keys if (one.checkpoint, one.engine) == (arm.checkpoint, arm.engine)]
    own = order_of(finding.tag)
    before = [one for one in measured if order_of(tags[one.version]) <= own]
    last = sorted(before, key=lambda one: order_of(tags[one.version]))[-1:]
    baselines = [one for one in measured if one.version in rule.baselines]
    return [one for one in dict.fromkeys([*last, *baselines]) if one != arm]


def latest_candidates(
    iterations: Mapping[str, bytes], frozen: Sequence[str], *, where: str
) -> dict[str, IterationFile]:
    """The iterations that are not frozen, by name. Raises EngcmpError for one that cannot be read."""
    return {
        name: parse_iteration(data, where=f"{where}/{name}.toml")
        for name, data in sorted(iterations.items())
        if name not in frozen
    }


def _table(name: str | None, fields: Mapping[str, str | bool]) -> list[str]:
    head = [] if name is None else [f"\n[{name}]"]
    # A JSON string is a TOML string, as long as nothing is written as a surrogate pair.
    return head + [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]


def _key(name: str) -> str:
    """A part of a table's name, quoted: a version may hold dots."""
    return json.dumps(name)
