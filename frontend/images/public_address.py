"""Which addresses a frontend may connect to for a client: those that anybody can reach."""

from __future__ import annotations

import ipaddress

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # how an IPv6-only network names IPv4 addresses


def is_public(address: str) -> bool:
    """Neither loopback, private, link-local, shared, reserved nor multicast, in no disguise."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    inner = ip.ipv4_mapped or ip.sixtofour
    if ip in _NAT64:
        inner = ipaddress.IPv4Address(ip.packed[-4:])
    if inner is not None:
        return is_public(str(inner))
    return ip in _GLOBAL_UNICAST and ip.is_global
