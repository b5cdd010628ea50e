"""Ports of 127.0.0.1, for engines that are told where to listen."""

from __future__ import annotations

import socket

from engcmp_resources.errors import EngcmpError

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that is free at this moment; whoever is told to take it may still find it taken."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def refuse_taken(port: int, label: str) -> None:
    """Raise EngcmpError where something listens on `port`. `label` names the launch."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise EngcmpError(
                f"{label}: port {port} of {LOOPBACK} is taken",
                remedy="end what listens there, or name another port, or none",
            ) from error
