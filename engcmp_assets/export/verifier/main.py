"""`python verify.py`: reads a bundle, holds it against itself and against what the reader was told, and says what it found."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .chain import Chain, check_chain
from .faults import Fault
from .figures import Figures
from .reading import MANIFEST, Bundle, canonical, sha256
from .signature import check_signature


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Verify the bundle in `folder`; exit 0 where all holds, 1 at the first file that does not."""
    parser = argparse.ArgumentParser(
        prog="verify.py", description="Verify this exported study, offline, with nothing but Python.",
        epilog="Example: python verify.py --head 3f0c...",
    )  # fmt: skip
    parser.add_argument("--head", help="the head that was published elsewhere: the bundle must have exactly this one")
    parser.add_argument("--key", help="the public key (hex) by which the bundle must be signed")
    options = parser.parse_args(arguments)
    try:
        text = verify(folder, head=options.head, key=options.key)
    except Fault as fault:
        print(f"FAILED {fault}", file=sys.stderr)
        return 1
    print(text)
    return 0


def verify(folder: Path, *, head: str | None = None, key: str | None = None) -> str:
    """What was verified, for people. Raises Fault for the first thing that does not hold.

    Hashes come first, then the chain, then the figures: each rests on what was checked before it. `head` is the head that was
    published elsewhere; without it, or a signature, a bundle that was made anew as a whole cannot be told from the true one.
    """
    bundle = Bundle(folder)
    signer = check_signature(bundle, key)
    size = 0
    for name in bundle.files:
        size += len(bundle.read(name))
    for name in bundle.too_many():
        raise Fault(name, "lies in the bundle and is not in its manifest")
    chain = Chain(bundle)
    _raise_first(_head_faults(chain, head))
    _raise_first(check_chain(chain))
    figures = Figures(chain)
    _raise_first(figures.faults())
    if not figures.recomputed:
        raise Fault(MANIFEST, "holds no table from which a figure could be recomputed")
    replaced = [name for name, entry in bundle.files.items() if "original_sha256" in entry]
    against = "the head that you gave" if head else f"head {chain.bundle.manifest['head_sha256']}"
    lines = [
        f"{bundle.manifest['study']}: verified against {against}",
        f"  {len(bundle.files)} files, {size / 1e6:,.1f} MB, have the hashes of the manifest; nothing else lies here",
        f"  {len(chain.receipts)} receipts have the hashes of their names",
        f"  every chain ends in the frozen hash {bundle.manifest['frozen_sha256']}",
        f"  {figures.recomputed} figures were recomputed from their rows and agree; {figures.by_chain} more stand by their receipts alone",
        f"  {len(bundle.manifest['by_hash'])} files (row files, weights) are known by their hash only",
        f"  signed by {signer}" if signer else "  not signed: compare the head with one that was published elsewhere",
    ]
    lines += [f"  placeholders were put into {name}: its own hash is taken as stated" for name in replaced]
    return "\n".join(lines)


def head_of(heads: dict[str, str]) -> str:
    """One hash for all heads: what is published, so that no bundle can be made anew unseen."""
    return sha256(canonical(heads))


def _head_faults(chain: Chain, head: str | None) -> Iterator[Fault]:
    stated = chain.bundle.manifest["head_sha256"]
    if head_of(chain.heads) != stated:
        yield Fault(MANIFEST, "states another head than its heads give")
    if head is not None and head.lower() != stated:
        yield Fault(MANIFEST, f"has head {stated}, not the published {head.lower()}: something of it was made anew")


def _raise_first(faults: Iterator[Fault]) -> None:
    for fault in faults:
        raise fault
