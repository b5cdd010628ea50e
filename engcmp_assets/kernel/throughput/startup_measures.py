"""The measures of start-up and memory, each described once (MEASURES section 8); kernel/measures.py has them with all others."""

from __future__ import annotations

from engcmp_assets.kernel.measure_record import Measure

STARTUP_MEASURES: tuple[Measure, ...] = (
    Measure(
        "ready_s",
        1,
        "s",
        "Ready time",
        "Time from the launch command to the first completed inference of one token of the right model. The median of the starts of that "
        "state: cold where the named caches were cleared before, warm where they were kept.",
        "lower",
    ),
    Measure(
        "kv_pool_tokens",
        1,
        "tokens",
        "KV pool",
        "Tokens for which the engine has room in its KV cache, as it states it for the maximum length that it was started with.",
        "higher",
    ),
    Measure(
        "resident_bytes",
        1,
        "bytes",
        "Resident memory",
        "Memory of this machine that the engine's processes hold after the start-up's requests, pages of mapped files included.",
        "lower",
    ),
    Measure(
        "gpu_memory_bytes",
        1,
        "bytes",
        "GPU memory",
        "Memory of the GPUs that the driver counts to the engine's processes after the start-up's requests.",
        "lower",
    ),
    Measure(
        "prefix_ttft_ms",
        1,
        "ms",
        "First token of a repeated prompt",
        "Time from just before a request's bytes are sent to its first token event, of a prompt that is sent for the first time (cold) or "
        "again, with nothing else running.",
        "lower",
    ),
    Measure(
        "prefix_cached_tokens",
        1,
        "tokens",
        "Cached tokens of a repeated prompt",
        "Prompt tokens that came from the engine's cache, as the engine states them for the request, or else by its own counter over it.",
        "higher",
    ),
)

STARTUP_IDS: tuple[str, ...] = tuple(one.id for one in STARTUP_MEASURES)
