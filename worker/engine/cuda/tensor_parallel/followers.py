"""Rank 0's side: starts the other ranks, sends them each step, and ends when one of them does."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Self

from shared.errors import ConfigError
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup, RankSockets
from worker.engine.cuda.tensor_parallel.rank_orders import RankOrder, encode_order
from worker.engine.device.gpu_device import GpuDevice
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import RanksAwaited
from worker.engine_link.rank_links import RankLink, RankListener, start_rank

OWN_ERROR_S = 10.0
_SECRET_BYTES = 32


class _Follower(NamedTuple):
    rank: int
    link: RankLink
    process: subprocess.Popen[bytes] | None  # None: it is another host's


class Followers:
    """All ranks but ours. None outlives us, and we outlive none.

    A sum that a dead rank has no part in would be waited for until it times out, on a GPU in a
    place that no exception reaches: so the whole process ends, and the worker starts another one.
    """

    def __init__(self, group: RankGroup, followers: Sequence[_Follower]) -> None:
        self.group = group
        self._followers = followers

    @classmethod
    def start(
        cls,
        config: EngineConfig,
        device: GpuDevice,
        on_awaited: Callable[[RanksAwaited], None],
        on_missing: Callable[[str], None],
    ) -> Self:
        """From the main thread: the kernel ends them with the thread that starts them.

        Waits until all have joined. `config` leaves nothing for a rank to find out by itself.
        `on_awaited` gets the address where ranks of other hosts find us, `on_missing` which hosts
        are not there yet. Raises ConfigError.
        """
        followers = [_start(config, rank) for rank in range(1, config.num_local_ranks)]
        if config.nnodes > 1:
            followers += _await_others(config, on_awaited, on_missing)
        sockets = RankSockets(0, config.num_ranks, [each.link.sums for each in followers])
        return cls(RankGroup.join(device, sockets, config.node_address), followers)

    def send(self, order: RankOrder) -> None:
        """Before our own part of it is enqueued."""
        frame = encode_order(order)
        for each in self._followers:
            each.link.orders.sendall(frame)

    def send_each(self, orders: Sequence[RankOrder]) -> None:
        """One for each of them, by rank."""
        for each, order in zip(self._followers, orders, strict=True):
            each.link.orders.sendall(encode_order(order))


def _start(config: EngineConfig, rank: int) -> _Follower:
    ours, theirs = RankLink.pair()
    return _watched(_Follower(rank, ours, start_rank(config, rank, theirs)), config.num_ranks)


def _await_others(
    config: EngineConfig,
    on_awaited: Callable[[RanksAwaited], None],
    on_missing: Callable[[str], None],
) -> list[_Follower]:
    """Those of other hosts, by rank. Raises ConfigError."""

    def report(missing: Collection[int]) -> None:
        nodes = sorted({rank // config.num_local_ranks for rank in missing})
        if nodes:
            on_missing(f"wait for node {', '.join(map(str, nodes))} of {config.nnodes}")

    secret = secrets.token_bytes(_SECRET_BYTES)
    try:
        listener = RankListener(config.node_address, config.node_port, secret)
    except OSError as exc:
        raise ConfigError(
            f"node_address={config.node_address} and node_port={config.node_port} cannot be "
            f"listened on: {exc.strerror}"
        ) from exc
    on_awaited(RanksAwaited(config.node_address, listener.port, secret, config.to_json()))
    found = [
        _watched(_Follower(rank, link, None), config.num_ranks)
        for rank, link in listener.links(range(config.num_local_ranks, config.num_ranks), report)
    ]
    return sorted(found, key=lambda each: each.rank)


def _watched(follower: _Follower, num_ranks: int) -> _Follower:
    watch = threading.Thread(target=_end_with, args=(follower, num_ranks), daemon=True)
    watch.start()
    return follower


def _end_with(follower: _Follower, num_ranks: int) -> None:
    """Waits for its end, and ends this process."""
    try:
        last_word = follower.link.orders.recv(1)
    except OSError:
        last_word = b""
    how = "on another host"
    if follower.process is not None:
        how = f"with {follower.process.wait()}"
    if last_word:  # it cannot load, nor can we: our own error reaches the worker
        time.sleep(OWN_ERROR_S)
    sys.stderr.write(
        f"rank {follower.rank} of {num_ranks} has ended {how}: the engine ends with it\n"
    )
    sys.stderr.flush()
    os._exit(1)
