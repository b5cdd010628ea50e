"""Whether a study stands as it was frozen: its files, and the versions and results of the measures, drivers and checkers of this code.

Every asset asks it before it works, also where the first one, which keeps the proof, is answered from the store.
"""

from __future__ import annotations

from engcmp_assets.frozen_protocol.conformance import conformance_values, current_versions
from engcmp_assets.frozen_protocol.freezing import check_versions
from engcmp_assets.kernel.study import Study


def require_standing(study: Study) -> None:
    """Raise EngcmpError naming the file, measure, driver or checker that differs from the freeze."""
    study.require_frozen()
    check_versions(study.frozen or {}, current_versions(), conformance_values(), where=str(study.folder))
