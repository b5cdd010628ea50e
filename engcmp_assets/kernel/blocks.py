"""The measurement blocks of a study, by the letters that people call them: q precision, t speed (throughput), l long output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from engcmp_assets.kernel.names import CELLS, EVENTS, LAUNCH, REPLIES, REPLY_CHECKS, SERVING
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.records import ArmKey
from engcmp_resources.errors import EngcmpError

# What an arm's measurements start from, whatever the block.
INPUTS = ("frozen_protocol", "sources", "prompt_set")
WORDS = {"q": "precision", "t": "speed", "l": "long output"}
_ROWS = "captured_rows/"
_OWN = {
    "q": ("reference_rows", LAUNCH, "scores", "tails"),
    "t": (SERVING, EVENTS, CELLS),
    "l": (SERVING, REPLIES, REPLY_CHECKS),
}
_MEASURED = {"q": _ROWS, "t": EVENTS, "l": REPLIES}


def blocks_of(artifacts: Collection[str]) -> tuple[str, ...]:
    """The blocks that a study with these artifacts has."""
    return tuple(block for block, name in _MEASURED.items() if any(one.startswith(name) for one in artifacts))


def blocks_of_study(protocol: Protocol) -> tuple[str, ...]:
    """The blocks that a study has: its panels always are one."""
    return ("q", *(["t"] if protocol.throughput else []), *(["l"] if protocol.long_replies else []))


def blocks_of_arm(protocol: Protocol, arm: ArmKey) -> tuple[str, ...]:
    """Of the study's blocks those that the protocol wants of `arm`: all, unless its entry names some."""
    named = next((entry.blocks for entry in protocol.arms if entry.arm == str(arm)), None)
    return tuple(one for one in blocks_of_study(protocol) if named is None or one in named)


def is_asked(protocol: Protocol, arm: ArmKey, artifact: str) -> bool:
    """Whether the protocol wants `artifact` of `arm`: what belongs to no block is wanted of every arm."""
    own = {block for block, names in _OWN.items() if artifact in names or (block == "q" and artifact.startswith(_ROWS))}
    return not own or bool(own & set(blocks_of_arm(protocol, arm)))


def not_asked(protocol: Protocol, arm: ArmKey) -> dict[str, str]:
    """Why `arm` has nothing of a block of the study, by the block's letter; {} for an arm that has all of them."""
    own = blocks_of_arm(protocol, arm)
    words = " and ".join(WORDS[one] for one in own) or "nothing"
    why = f"the protocol asks for {words} only of this arm"
    return {one: why for one in blocks_of_study(protocol) if one not in own}


def artifacts_of(blocks: Iterable[str], artifacts: Sequence[str]) -> tuple[str, ...]:
    """Of a study's artifacts those of the blocks, in their order: inputs, launches, measurements and what follows from each alone.

    Summaries are of all blocks together and are none of them.
    """
    chosen = set(blocks)
    wanted, rows = {name for block in chosen for name in _OWN[block]}, "q" in chosen
    return tuple(name for name in artifacts if name in wanted or (rows and name.startswith(_ROWS)))


def parse_blocks(texts: Sequence[str], known: Sequence[str], *, study: str) -> tuple[str, ...]:
    """The blocks that `q,t` or several such texts name, in the order q, t, l; none named: all that the study has.

    Raises EngcmpError for a letter that is no block, and for a block that the study does not have.
    """
    named = {one.strip().lower() for text in texts for one in text.split(",")}
    there = ", ".join(f"{one} ({WORDS[one]})" for one in known)
    for one in sorted(named):
        if one not in WORDS:
            raise EngcmpError(f"{one!r} is no block", remedy=f"the blocks of study {study} are {there}")
        if one not in known:
            raise EngcmpError(
                f"study {study} has no block {one} ({WORDS[one]})",
                remedy=f"its blocks are {there}; others are a table of its protocol",
            )
    return tuple(one for one in known if not named or one in named)
