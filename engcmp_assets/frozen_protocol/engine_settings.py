"""What a protocol says of its engines, held against what their kinds take: a wrong setting must not wait for the first launch."""

from __future__ import annotations

from engcmp_assets.kernel.engine_tables import ServerEngine
from engcmp_assets.kernel.protocol import Protocol
from engcmp_resources.engines.base import decoder_kinds, engine_kinds
from engcmp_resources.engines.servers import checked_settings, server_kinds
from engcmp_resources.errors import EngcmpError


def refuse_unknown_engines(protocol: Protocol, *, where: str) -> None:
    """Raise EngcmpError naming the engine for a kind that does not exist and for settings that its kind does not take."""
    for name, engine in protocol.engines.items():
        field = f"{where}, engines.{name}"
        if isinstance(engine, ServerEngine):
            own = [arm for arm in protocol.arm_keys if arm.engine == name]
            for arm in own:  # what an arm is started with may come from its version, checkpoint and setting
                checked_settings(engine.kind, engine.for_arm(arm).settings, where=f"{field}.settings of arm {arm}")
            if not own:
                checked_settings(engine.kind, engine.settings, where=f"{field}.settings")
        elif engine.kind not in (known := sorted({*engine_kinds(), *decoder_kinds()})):
            raise EngcmpError(
                f"no engine kind {engine.kind!r} runs as a process", where=f"{field}.kind",
                remedy=f"known kinds: {', '.join(known)}; with a table `settings`: {', '.join(server_kinds())}",
            )  # fmt: skip
