"""What the verifier says of a bundle that does not hold."""

from __future__ import annotations


class Fault(Exception):
    """Something in the bundle that is not what it must be: the file (below the bundle's folder), and what is wrong with it."""

    def __init__(self, file: str, what: str) -> None:
        super().__init__(f"{file}: {what}")
        self.file = file
        self.what = what
