"""A study without the panels whose windows are not part of it yet: what of it can be measured is, and what cannot is named."""

from __future__ import annotations

from collections.abc import Mapping

from engcmp_assets.kernel.protocol import CapturePlan, Protocol
from engcmp_assets.kernel.study_tables import Gap


def without_panels(protocol: Protocol, waiting: Mapping[str, str]) -> Protocol:
    """The protocol without these panels (name: reason), and each as a gap: pages print it as they print every other.

    A rule that reads a figure of such a panel stays and says that there is none.
    """
    if not waiting:
        return protocol

    def left(plan: CapturePlan | None) -> CapturePlan | None:
        kept = [] if plan is None else [name for name in plan.panels if name not in waiting]
        return plan.model_copy(update={"panels": kept}) if plan is not None and kept else None

    gaps = [
        Gap(
            what=f"rows of panel {name} ({protocol.panels[name].label})", why=why,
            here="it is neither captured nor scored until its windows are part of a freeze",
        )
        for name, why in waiting.items()
    ]  # fmt: skip
    capture = protocol.capture
    return protocol.model_copy(
        update={
            "panels": {name: plan for name, plan in protocol.panels.items() if name not in waiting},
            "capture": capture.model_copy(update={"prefill": left(capture.prefill), "decode": left(capture.decode)}),
            "gaps": [*protocol.gaps, *gaps],
        }
    )
