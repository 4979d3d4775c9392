"""What the streams of a deployment may grow to, and whether JetStream has that room."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from shared.config import ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.subjects import Subjects
from shared.telemetry.log import get_logger

_REMEDY = "lower what you need least"
# Of the account's storage, of a stream's bytes, of the server's storage.
_ROOM_ERRORS = (10002, 10122, 10047)
NUM_KEY_BUCKETS = len(Subjects().key_buckets)
_TIMES = {"files_max_bytes": 2, "keys_max_bytes": NUM_KEY_BUCKETS}  # streams of that size
_NO_STORAGE = "insufficient storage"  # a cluster's: there is no peer with room

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ByteBudget:
    """Bytes on each server that holds a copy. JetStream reserves what a stream may grow to."""

    queue_max_bytes: int
    log_max_bytes: int
    results_max_bytes: int
    files_max_bytes: int  # of files; and again of what running batches have done
    response_store_bytes: int
    dead_max_bytes: int
    objects_max_bytes: int
    keys_max_bytes: int  # of each of NUM_KEY_BUCKETS
    bills_max_bytes: int = 0  # none are kept
    unlimited_bytes: int = 256 << 20  # cards, leases, heartbeats, events: an estimate

    @classmethod
    def of(cls, config: ClusterConfig) -> Self:
        """What the streams are made with."""
        return cls(
            config.queue_max_bytes,
            config.log_max_bytes,
            config.results_max_bytes,
            config.files_max_bytes,
            config.response_store_bytes,
            config.dead_max_bytes,
            config.objects_max_bytes,
            config.keys_max_bytes,
            config.bills_max_bytes if config.bills_ttl_s else 0,
        )

    def that_fits(self, free_bytes: int) -> Self:
        """This budget, or less on a small disk: a full one stops the queue for good."""
        return type(self)(
            queue_max_bytes=min(self.queue_max_bytes, free_bytes // 8),
            log_max_bytes=min(self.log_max_bytes, free_bytes // 2),
            results_max_bytes=min(self.results_max_bytes, free_bytes // 16),
            files_max_bytes=min(self.files_max_bytes, free_bytes // 16),
            response_store_bytes=min(self.response_store_bytes, free_bytes // 16),
            dead_max_bytes=min(self.dead_max_bytes, free_bytes // 64),
            objects_max_bytes=min(self.objects_max_bytes, 3 * free_bytes // 64),
            keys_max_bytes=min(self.keys_max_bytes, free_bytes // 256),
            bills_max_bytes=min(self.bills_max_bytes, free_bytes // 64),
            unlimited_bytes=min(self.unlimited_bytes, free_bytes // 128),
        )

    @property
    def reserved(self) -> int:
        """The bytes of the streams with a limit."""
        logs = self.queue_max_bytes + self.log_max_bytes + self.results_max_bytes
        kept = self.response_store_bytes + self.dead_max_bytes + self.objects_max_bytes
        keys = NUM_KEY_BUCKETS * self.keys_max_bytes
        return logs + kept + 2 * self.files_max_bytes + keys + self.bills_max_bytes

    @property
    def total(self) -> int:
        """What the server's `max_file_store` should be at least."""
        return self.reserved + self.unlimited_bytes

    def __str__(self) -> str:
        """The sum, with the settings that make it."""
        told = []
        for field in dataclasses.fields(self):
            is_kept = field.name != "bills_max_bytes" or self.bills_max_bytes
            if field.name != "unlimited_bytes" and is_kept:
                num = _TIMES.get(field.name, 1)
                times = f"{num} x " if num > 1 else ""
                flag = f"--{field.name.replace('_', '-')}"
                told.append(f"{times}{flag} {in_units(getattr(self, field.name))}")
        rest = in_units(self.unlimited_bytes)
        return f"{in_units(self.total)} ({', '.join(told)}, {rest} for what has no limit)"


def check_account(
    config: ClusterConfig, missing: Iterable[Mapping[str, Any]], account: Mapping[str, Any]
) -> None:
    """Whether an account has room for streams that are to be made, by the server's figures of it.

    Raises ConfigError, before any is made. What the server itself has room for it does not tell.
    """
    # The limits of a tier are of one copy, those of an account without tiers of all copies.
    tier = account.get("tiers", {}).get(f"R{config.replicas}")
    found, num_copies = (account, config.replicas) if tier is None else (tier, 1)
    most = int(found["limits"].get("max_storage", -1))
    if most <= 0:
        return
    reserved = int(found.get("reserved_storage", 0))
    wanted = num_copies * sum(max(0, int(stream.get("max_bytes", 0))) for stream in missing)
    budget = ByteBudget.of(config)
    total = num_copies * budget.total
    if wanted > most - reserved:
        raise ConfigError(
            f"the JetStream account has {in_units(most)}, of which {in_units(reserved)} are "
            f"reserved, and the streams with prefix {config.prefix!r} that are to be made want "
            f"{in_units(wanted)}: raise the account's max_file to {in_units(total)} or more, or "
            f"{_REMEDY}. {_of_copies(config, budget)}"
        )
    if reserved + wanted + num_copies * budget.unlimited_bytes > most:
        log.warning(
            "account_nearly_too_small",
            max_storage=in_units(most),
            wanted=in_units(total),
            remedy="raise the account's max_file",
        )


def room_error(
    config: ClusterConfig, stream: Mapping[str, Any], exc: BrokerError
) -> ConfigError | None:
    """What to say of a stream that the server has refused; None: not for want of room."""
    if exc.err_code not in _ROOM_ERRORS and _NO_STORAGE not in str(exc):
        return None
    budget = ByteBudget.of(config)
    return ConfigError(
        f"JetStream has no room for stream {stream['name']} of "
        f"{in_units(max(0, int(stream.get('max_bytes', 0))))} ({exc}): set max_file_store of each "
        f"server to {in_units(budget.total)} or more, on a volume that has them, or {_REMEDY}. "
        f"{_of_copies(config, budget)}"
    )


def in_units(num_bytes: int) -> str:
    """The number as people read it."""
    if num_bytes >= 1 << 30:
        return f"{num_bytes / (1 << 30):.4g} GiB"
    return f"{num_bytes / (1 << 20):.4g} MiB"


def _of_copies(config: ClusterConfig, budget: ByteBudget) -> str:
    return f"Each of {config.replicas} copies may take {budget}"
