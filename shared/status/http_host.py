"""Which names a keyless HTTP server goes by: a page must not reach it under a name of its own."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

# Nobody can register a name below these, so none of them can be made to point here.
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")  # and others, which take longer to tell
_INNER_SUFFIXES = (".localhost", ".svc", ".cluster.local", ".internal")


@dataclass(frozen=True, slots=True)
class HostRule:
    """The names that the address of a server allows.

    Whoever owns a domain can have it mean any address (DNS rebinding), but browsers tell under
    which name they ask.
    """

    is_loopback: bool
    allowed: frozenset[str]  # lower case; "*": any

    @classmethod
    def of(cls, address: str, allowed: Sequence[str] = ()) -> Self:
        """The rule of a server that listens on `address`; `allowed` are names in addition."""
        return cls(is_loopback_name(address), frozenset(map(_name, allowed)))

    def allows(self, header: str) -> bool:
        """What `Host` says, or nothing, as HTTP/1.0 and programs may."""
        name = _name(header)
        if not name or name in self.allowed or "*" in self.allowed or is_loopback_name(name):
            return True
        if self.is_loopback:
            return False
        return _is_address(name) or "." not in name or name.endswith(_INNER_SUFFIXES)


def is_loopback_name(name: str) -> bool:
    """`localhost`, or an address of this machine alone."""
    if name in _LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return False


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


def _name(header: str) -> str:
    """The name without port, brackets and the dot of the root."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, _, port = text.rpartition(":")
    return (name if name and port.isdigit() and ":" not in name else text).rstrip(".")
