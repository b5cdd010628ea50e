"""Why the last run of an arm's engine was refused: a small record beside the heads, gone when the arm succeeds. No figure rests on it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from engcmp_assets.kernel.names import LAUNCH
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.work import Session
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.disk import make_folder, replace_visible
from engcmp_resources.errors import EngcmpError, UnfitMachine
from engcmp_resources.host import processor_fingerprint
from engcmp_resources.refusals import last_refusal, refusal_file


@contextmanager
def refusal_kept(session: Session, arm: ArmKey, *, of: str = LAUNCH, measured: bool = True) -> Iterator[None]:
    """Keep the words of an error that ends what is done within; what was kept of an earlier one goes when the arm is then `measured`.

    An arm has two kinds of launches; what one kind was refused for does not go when the other, `of` another artifact, succeeds.
    """
    study = session.study.protocol.study
    path = refusal_file(session.store.home, study, arm.folder)
    try:
        yield
    except EngcmpError as error:
        what = error.what.removeprefix(f"study {study}: ").removeprefix(f"arm {arm}").removeprefix(":").strip()
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        words: dict[str, Any] = {
            "what": what,
            "when": when,
            "where": error.where,
            "remedy": error.remedy,
            "of": of,
            "run_id": session.run_id,
        }
        if isinstance(error, UnfitMachine):
            words["unfit"] = _circumstances(session)
        with suppress(OSError, EngcmpError):  # a disk that refused the work may refuse this too
            make_folder(path.parent)
            replace_visible(path, canonical_bytes(words))
        raise
    if measured and (kept := last_refusal(session.store.home, study, arm.folder)) and kept.of in (of, None):
        path.unlink(missing_ok=True)


def refuse_unfit(session: Session, arm: ArmKey) -> None:
    """Raise again, without a start, the UnfitMachine that the arm's last run ended with, while neither freeze nor processor is another."""
    path = refusal_file(session.store.home, session.study.protocol.study, arm.folder)
    try:
        kept = json.loads(path.read_bytes())
        what, unfit, where, remedy = (kept[name] for name in ("what", "unfit", "where", "remedy"))
    except (OSError, ValueError, KeyError, TypeError):
        return  # nothing kept, or nothing to go by: the engine is started and tells
    if unfit == _circumstances(session):
        raise UnfitMachine(f"arm {arm}: {what}", where=where, remedy=f"{remedy}; --remeasure tries again")


def _circumstances(session: Session) -> dict[str, str]:
    return {"frozen_sha256": session.study.frozen_sha256, "processor_sha256": processor_fingerprint()}


def refusals_of(session: Session, arms: Sequence[ArmKey]) -> dict[str, str]:
    """Of those of `arms` whose last run was refused: what for and when, as a reader is told."""
    study = session.study.protocol.study
    found = {str(arm): last_refusal(session.store.home, study, arm.folder) for arm in arms}
    return {arm: str(one) for arm, one in found.items() if one is not None}
