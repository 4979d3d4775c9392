"""Whose requests they are: who holds some API keys, or everybody where no key is needed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from shared.subjects import NUM_LANES

ANYONE = "anyone"  # in keys of buckets: the owner where no API key is needed
LANE_SIZE = 8  # requests that a tenant of weight 1 has in the lowest lane of a class
LANE_GROWTH = 8  # how many times as many in it and the next one together


@dataclass(frozen=True, slots=True)
class Tenant:
    """Clients never say who they are: a name that costs nothing would buy a share of its own.

    Everything that a tenant has hangs on its id, whichever of its keys was sent. Ids that operators
    write hold no colon; those with one are made here, of what stands before it.
    """

    id: str = ""  # fit for logs; "" where no key is needed
    weight: float = 1.0  # how many requests its lanes hold, in multiples of the usual number
    max_concurrent: int | None = None  # requests that may wait or run
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and output
    cache_group: str = ""  # of tenants that share cached prefixes; "": of this one alone
    is_operator: bool = False  # may see machines, and the requests of others
    reads_kept: bool = False  # may read kept requests of all tenants, and run them again

    @property
    def owner(self) -> str:
        """What stands for it in stored records, and in their keys; "" where no key is needed."""
        if not self.id:
            return ""
        person = b"jetflock-tenant"
        return hashlib.blake2b(self.id.encode(), digest_size=16, person=person).hexdigest()

    @property
    def has_rate(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    def lane_level(self, num_outstanding: int) -> int:
        """Where its next request goes, when so many of the class wait or run."""
        size = LANE_SIZE * self.weight
        for level in range(NUM_LANES - 1):
            if num_outstanding < size:
                return level
            size *= LANE_GROWTH
        return NUM_LANES - 1


EVERYBODY = Tenant(is_operator=True)
