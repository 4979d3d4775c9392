"""Two keepers of workers on one machine: their metrics ports never meet."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from deploy.local.port_claim import claimed_ports
from deploy.local.serve_config import ServeConfig
from shared.errors import ConfigError
from tests.e2e.role_stack import SCRIPTED, RoleStack


def free_ports(count: int) -> int:
    """The first of so many in a row."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
        try:
            for each in range(port, port + count):
                socket.create_server(("127.0.0.1", each)).close()
        except (OSError, OverflowError):
            continue
        return port


@pytest.mark.parametrize("offset", [0, 1, 3, -2])
def test_ports_that_meet_are_refused_by_name(offset: int) -> None:
    port = free_ports(9) + 2
    one = ServeConfig(metrics_port=port, workers="0..3")
    other = ServeConfig(metrics_port=port + offset, workers="0..2")
    with claimed_ports(one):
        words = (
            rf"--metrics-port is {port + offset} and --workers is 0\.\.2: .* "
            rf"Port {port + max(0, offset)} is kept by another jetflock \(process {os.getpid()}\)"
        )
        with pytest.raises(ConfigError, match=words), claimed_ports(other):
            pass
    with claimed_ports(other):
        pass


def test_ports_side_by_side_are_taken() -> None:
    port = free_ports(6)
    one = ServeConfig(metrics_port=port, workers="0..2")
    with claimed_ports(one), claimed_ports(ServeConfig(metrics_port=port + 3, workers=2)):
        pass


def test_without_metrics_nothing_is_claimed() -> None:
    with claimed_ports(ServeConfig(workers=2)), claimed_ports(ServeConfig(workers=2)):
        pass


def test_a_program_that_listens_is_told_of() -> None:
    port = free_ports(3)
    config = ServeConfig(metrics_port=port, workers="1..2")
    with (
        socket.create_server(("127.0.0.1", port + 2)),
        pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{port + 2}"),
        claimed_ports(config),
    ):
        pass
    with claimed_ports(config):  # what was claimed before the refusal is free again
        pass


@pytest.mark.e2e
@pytest.mark.integration
async def test_a_second_autoscaler_whose_ports_meet_the_first_ones_refuses(tmp_path: Path) -> None:
    port = free_ports(4)
    async with RoleStack(tmp_path) as stack:
        first = stack.start_autoscaler(
            "--workers", "1..2", "--metrics-port", str(port), *SCRIPTED
        )  # fmt: skip
        await stack.wait_ready(1)
        second = stack.start_autoscaler(
            "--workers", "0..1", "--metrics-port", str(port + 2), *SCRIPTED
        )  # fmt: skip
        assert await asyncio.to_thread(second.process.wait, 60) == 2
        assert f"Port {port + 2} is kept by another jetflock (process {first.pid})" in second.log
        assert first.is_alive
