"""Which addresses a frontend may connect to for a client: those that anybody can reach."""

from __future__ import annotations

import ipaddress

_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # how an IPv6-only network names IPv4 addresses
# What `is_global` of Python 3.11 takes for public. IANA's registries of special-purpose addresses,
# and what clouds have put among public ones: their metadata and wire servers.
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",  # IETF protocol assignments; 192.0.0.192: Oracle's metadata
            "192.31.196.0/24",  # AS112, answered by the next network
            "192.52.193.0/24",  # AMT relays
            "192.88.99.0/24",  # 6to4 relays: whoever is next to us
            "192.175.48.0/24",  # AS112
            "168.63.129.16/32",  # Azure's wire server
            "2001::/23",  # IETF protocol assignments: Teredo, ORCHID, AMT, drones
            "2002::/16",  # 6to4, a disguise of an IPv4 address
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
        ),
    )
)


def is_public(address: str) -> bool:
    """Neither loopback, private, link-local, shared, reserved nor multicast, in no disguise."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if any(ip in network for network in _SPECIAL):
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    inner = ip.ipv4_mapped
    if ip in _NAT64:
        inner = ipaddress.IPv4Address(ip.packed[-4:])
    if inner is not None:
        return is_public(str(inner))
    return ip in _GLOBAL_UNICAST and ip.is_global
