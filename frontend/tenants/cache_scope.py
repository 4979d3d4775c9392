"""Who shares cached prefixes with whom: nobody, but where an operator says so.

Whoever shares them can find out what others have asked: a prefix that is there costs less time, and
`cached_tokens` tells it. So each request bears a salt that is made of its tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets

from frontend.tenants.tenant import Tenant
from shared.broker.kv_bucket import KvBucket, KvEntry
from shared.errors import BrokerError, CasConflict
from shared.telemetry.log import get_logger

KEY = "prefixes"
EVERY_MODEL = "*"
_ERASED = "erased."  # and an owner: how often all of it was erased

_NUM_BYTES = 32
_LOOK_INTERVAL_S = 10.0
_RETRY_S = 0.5

log = get_logger(__name__)


class CacheScope:
    """Makes salts under a secret of the deployment, which frontends alone can read.

    So nobody else can make the hashes by which workers find each other's prefixes. The first
    frontend makes the secret; one that an operator deletes is replaced within seconds, and all
    caches begin anew.
    """

    def __init__(self, bucket: KvBucket, shared_models: tuple[str, ...]) -> None:
        self._bucket = bucket
        self._shared_models = frozenset(shared_models)
        self._secret = b""
        self._num_erased: dict[str, int] = {}  # by owner: how often it was

    async def start(self) -> None:
        """Call it before the first salt is asked for: it waits however long NATS is away."""
        while not self._secret:
            try:
                await self._look()
            except BrokerError as exc:
                log.warning("cache_secret_not_read", error=str(exc))
                await asyncio.sleep(_RETRY_S)

    async def run(self) -> None:
        """Follow an operator who changes the secret, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            try:
                await self._look()
            except BrokerError as exc:
                log.debug("cache_secret_not_read", error=str(exc))

    def salt(self, tenant: Tenant, model: str, client_salt: str) -> str:
        """Equal for those who may know of each other's prompts, and ask with the same salt."""
        assert self._secret, "it has been started"
        digest = hashlib.blake2b(key=self._secret, digest_size=16, person=b"jetflock-salt")
        parts = [*self._scope(tenant, model), client_salt]
        if num_erased := self._num_erased.get(tenant.owner):
            parts.append(str(num_erased))
        for part in parts:
            data = part.encode()
            digest.update(len(data).to_bytes(4, "little") + data)
        return digest.hexdigest()

    def _scope(self, tenant: Tenant, model: str) -> tuple[str, str]:
        """Its kind and name."""
        if not self._shared_models.isdisjoint((model, EVERY_MODEL)):
            return "model", ""
        if tenant.cache_group:
            return "group", tenant.cache_group
        return "tenant", tenant.id

    async def _look(self) -> None:
        """Raises BrokerError."""
        entry = await self._bucket.get(KEY)
        while entry is None or not entry.value:  # what `nats kv del` leaves is empty
            revision = 0 if entry is None else entry.revision
            with contextlib.suppress(CasConflict):  # another frontend was faster
                await self._bucket.put_if(KEY, secrets.token_bytes(_NUM_BYTES), revision)
            entry = await self._bucket.get(KEY)
        if entry.value != self._secret:
            if self._secret:
                log.info("cache_secret_changed")
            self._secret = entry.value
        erased = await self._bucket.entries(_ERASED)
        self._num_erased = {e.key.removeprefix(_ERASED): _count(e) for e in erased}


async def forget_prefixes(bucket: KvBucket, owner: str) -> None:
    """What was computed for a tenant so far is found by none of its requests any more, once all
    frontends have looked; what an operator lets tenants share, by the others'. Raises BrokerError.
    """
    while True:
        entry = await bucket.get(_ERASED + owner)
        count = 0 if entry is None else _count(entry)
        try:
            await bucket.put_if(
                _ERASED + owner, str(count + 1).encode(), 0 if entry is None else entry.revision
            )
        except CasConflict:
            continue
        return


def _count(entry: KvEntry) -> int:
    """The number in an entry, at least one: an entry that cannot be read is one that somebody has
    written.
    """
    return max(1, int(entry.value)) if entry.value.isdigit() else 1
