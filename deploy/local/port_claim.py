"""Keeps the metrics ports of workers that are yet to come from other keepers on this machine."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from deploy.local.ports import check_port
from deploy.local.serve_config import ServeConfig
from shared.errors import ConfigError

_FLAG = "--metrics-port"


@contextmanager
def claimed_ports(config: ServeConfig) -> Iterator[None]:
    """Those of the keeper and of as many workers as there may be, while the body runs.

    A port of a worker that does not run is free to the system: so keepers tell each other by a
    name of their network namespace, which ends with the process. Raises ConfigError.
    """
    first, most = config.metrics_port, config.worker_range.most
    if not first:
        yield
        return
    ports = range(first, first + most + 1)
    with contextlib.ExitStack() as stack:
        for port in ports:
            if not _is_claimed(port, stack):
                raise ConfigError(
                    f"{_FLAG} is {first} and --workers is {config.workers}: ports {first} to "
                    f"{ports[-1]}, one a process. Port {port} is kept by another jetflock "
                    f"({_holder(port)}): choose a {_FLAG} whose ports do not meet"
                )
            check_port(config.metrics_host, port, f"{_FLAG} (worker {port - first} of {most})")
        yield


def _is_claimed(port: int, stack: contextlib.ExitStack) -> bool:
    """Whether it is ours now."""
    if sys.platform != "linux":
        return True
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stack.enter_context(claim)
    try:
        claim.bind(_name(port))
    except OSError:
        return False
    claim.listen()
    return True


def _holder(port: int) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(_name(port))
        except OSError:
            return "which has just ended"
        told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return f"process {struct.unpack('3i', told)[0]}"


def _name(port: int) -> bytes:
    """An address that is no file: the kernel forgets it with its socket."""
    return b"\0jetflock-metrics-port-%d" % port
