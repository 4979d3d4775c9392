"""TCP ports: whether one is free, and one that is."""

from __future__ import annotations

import errno
import socket

from shared.errors import ConfigError


def check_port(host: str, port: int, flag: str) -> None:
    """Raises ConfigError when nothing could listen there."""
    if not 1 <= port <= 65535:
        raise ConfigError(f"{flag} is {port}, must be 1 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as exc:
        remedy = f"stop what holds the port, or choose another by {flag}"
        if isinstance(exc, socket.gaierror) or exc.errno == errno.EADDRNOTAVAIL:
            remedy = "--host must be an address of this machine"
        elif exc.errno == errno.EACCES:
            remedy = f"ports below 1024 are root's: choose another by {flag}"
        raise ConfigError(
            f"cannot listen on {host}:{port}: {exc.strerror or exc}; {remedy}"
        ) from exc


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
