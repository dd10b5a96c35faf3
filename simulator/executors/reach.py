"""Whether anything listens at an address: asked first, since clients of clusters go on trying where nobody does."""

from __future__ import annotations

import socket

CONNECT_S = 5


def host_and_port(address: str) -> tuple[str, int] | None:
    """Those of ``host:port``, with a scheme before it or none; None where it is no such thing."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() and int(port) < 2**16 else None


def listens(host: str, port: int) -> bool:
    """Whether a connection is taken within ``CONNECT_S`` seconds."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True
