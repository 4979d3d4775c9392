"""Which detokenizer may publish what: its lease, and the owners of partitions."""

from __future__ import annotations

import msgspec


class LeaseRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a key `lease-<nonce>`: written again before `period_ms` is over.

    Each revision counts for that long, by the clock of whoever looks. An empty value says that
    somebody else has ended it; a nonce is never used twice.
    """

    holder: str  # the detokenizer's incarnation
    nonce: str
    period_ms: int
    has_presence: bool = False  # the holder listens on its presence subject


class PartitionOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a partition's key: whose it is, while the lease with this nonce lives."""

    holder: str
    nonce: str
