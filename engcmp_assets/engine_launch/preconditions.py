"""What an arm's engine needs of this machine, looked at before anything is computed for the arm."""

from __future__ import annotations

from engcmp_assets.engine_launch.step import pinned_identities
from engcmp_assets.kernel.engine_tables import ServerEngine
from engcmp_assets.kernel.names import LAUNCH
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.work import Session
from engcmp_resources.engines.servers import checked_settings
from engcmp_resources.errors import EngcmpError


def refuse_unready_place(session: Session, arm: ArmKey) -> None:
    """Raise EngcmpError, naming study and arm, where the arm's engine cannot be launched here: say, no Docker engine answers.

    An arm that was launched before is not looked at: its results may be answered from the store, on a machine that lacks the engine.
    """
    study = session.study
    engine = study.protocol.engine_of(arm)
    if not isinstance(engine, ServerEngine) or session.current(LAUNCH, arm) is not None:
        return
    settings = checked_settings(engine.kind, engine.settings, where=f"engines.{arm.engine}.settings")
    try:
        settings.check_place(f"arm {arm}", pinned_identities(study, arm))
    except EngcmpError as error:
        said = error.what.removeprefix(f"arm {arm}: ")
        raise EngcmpError(
            f"study {study.protocol.study}: arm {arm} cannot be measured on this machine: {said}", where=error.where,
            remedy=f"{error.remedy}; nothing was computed for this arm",
        ) from error  # fmt: skip
