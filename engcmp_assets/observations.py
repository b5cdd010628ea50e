"""What is seen on an asset's page without being a materialization: a look at the world, an approval, a proof."""

from __future__ import annotations

import dagster as dg

from engcmp_assets import events
from engcmp_assets.audit.verify import Verification
from engcmp_assets.engine_versions.look import candidates_of
from engcmp_assets.kernel.names import ENGINE_VERSIONS
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.work import Done, Session, Step, output_blob
from engcmp_resources.places import ITERATIONS

_UNSHOWN = "does not count"


def observe_result(session: Session, step: Step, done: Done) -> dg.ObserveResult:
    """The look for new versions: what waits for approval first, then every release that concerns the study, then as for any artifact."""
    made = events.materialize_result(session, step, None, done)
    return dg.ObserveResult(
        asset_key=made.asset_key,
        metadata={
            "waiting": dg.MetadataValue.md(_waiting(session.study)),
            "releases": dg.MetadataValue.md(_releases(session, done)),
            **(made.metadata or {}),
        },
        data_version=made.data_version,
        check_results=made.check_results,
    )


def approval_observation(study: Study, name: str, words: str) -> dg.AssetObservation:
    """An approved candidate: the arms that it adds, with links to their pages."""
    iteration = next(one for one in study.iterations if one.name == name)
    summaries = "/".join(events.asset_key(study, "summaries").path)
    links = [events.asset_url(study, "summaries", str(arm)) for arm in iteration.arm_keys]
    lines = [f"* [{arm}]({link})" for arm, link in zip(iteration.arm_keys, links, strict=True)]
    return dg.AssetObservation(
        asset_key=events.asset_key(study, ENGINE_VERSIONS),
        description=f"{words}. {summaries} has a partition for each of its arms.",
        metadata={
            "arms": dg.MetadataValue.md("\n".join(lines) or "none"),
            "iteration": name,
            "frozen_sha256": iteration.frozen_sha256,
            "digest": iteration.adds.release.digest if iteration.adds.release else "",
        },
    )


def verified_observation(study: Study, found: Verification) -> dg.AssetObservation:
    """A proof that went through, on the page of what it proves."""
    return dg.AssetObservation(
        asset_key=events.asset_key(study, "publication"),
        description="Verified: every hash, every chain, and every figure again from its rows.",
        metadata={
            "files": found.files,
            "receipts": found.receipts,
            "artifacts_recomputed": found.artifacts_recomputed,
            "figures": found.figures,
            **({} if found.events is None else {"dagster_events": found.events.agree}),
            "not_made": ", ".join(found.not_made) or "nothing is missing",
            "frozen_sha256": found.frozen_sha256,
        },
    )


def _waiting(study: Study) -> str:
    """The candidates as they lie in the study's folder, each with what approving it adds."""
    prefix = study.protocol.asset_prefix
    lines = []
    for name, adds in candidates_of(study).items():
        if adds.declined is not None:
            continue
        arms = ", ".join(f"`{entry.arm}`" for entry in adds.arms)
        lines.append(
            f"* **{name}** adds {arms}. {adds.because}. Its file: `{study.folder.name}/{ITERATIONS}/{name}.toml`"
        )
    if not lines:
        return "No candidate waits for approval."
    approve = f"/locations/engcmp/jobs/{prefix}_approve/playground"
    return "\n".join([*lines, "", f"[Approve one]({approve}): choose it as the partition, and launch the run."])


def _releases(session: Session, done: Done) -> str:
    table = read_parquet(session.store.path(output_blob(done.receipt, "engine_versions.parquet")))
    names = ("engine", "tag", "version", "state", "why")
    rows = list(zip(*(table[name].tolist() for name in names), strict=True))
    shown = [row for row in rows if row[3] != _UNSHOWN]
    lines = [" | ".join(names), " | ".join(["---"] * len(names)), *(" | ".join(row) for row in shown)]
    table_text = "\n".join(f"| {line} |" for line in lines)
    return f"{table_text}\n\n{len(rows) - len(shown)} more releases do not count by the protocol's rule."
