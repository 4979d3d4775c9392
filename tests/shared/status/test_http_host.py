"""By which names a server without keys may be called."""

from __future__ import annotations

import pytest

from shared.status.http_host import HostRule


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "localhost:8000", "LOCALHOST.", "app.localhost", "127.0.0.1:8000",
     "127.9.9.9", "[::1]:8000", "::1", "chat.example.com", "Chat.Example.com:443"],
)  # fmt: skip
def test_bound_to_loopback(host: str) -> None:
    assert HostRule.of("127.0.0.1", ("chat.example.com",)).allows(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "192.168.1.5", "localhost.evil.example",
     "127.0.0.1.nip.io", "frontend", "[::2]", "127.0.0.1@evil.example",
     "evil.example:8000:1", "x" * 5000],
)  # fmt: skip
def test_foreign_to_loopback(host: str) -> None:
    assert not HostRule.of("127.0.0.1", ("chat.example.com",)).allows(host)


def test_bound_to_a_network() -> None:
    rule = HostRule.of("0.0.0.0")
    for host in (
        "10.0.0.7:8000",
        "[fd00::1]",
        "frontend:8000",
        "jf.default.svc.cluster.local",
        "a.svc",
    ):
        assert rule.allows(host), host
    for host in ("evil.example", "10.0.0.7.evil.example", "svc.evil.example"):
        assert not rule.allows(host), host
    assert HostRule.of("0.0.0.0", ("*",)).allows("anything.example")
