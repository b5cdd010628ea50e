"""Why the last run of an arm's engine was refused: a small record beside the heads, gone when the arm succeeds. No result rests on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.work import Session
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.disk import make_folder, replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.refusals import refusal_file


@contextmanager
def refusal_kept(session: Session, arm: ArmKey) -> Iterator[None]:
    """Keep the words of an error that ends what is done within; what was kept of an earlier one goes when this ends well."""
    path = refusal_file(session.store.home, session.study.protocol.study, arm.folder)
    try:
        yield
    except EngcmpError as error:
        make_folder(path.parent)
        words = {"what": error.what, "where": error.where, "remedy": error.remedy, "run_id": session.run_id}
        replace_visible(path, canonical_bytes(words))
        raise
    path.unlink(missing_ok=True)
