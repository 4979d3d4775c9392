"""The right to change a pool: of several scalers one at a time has it."""

from __future__ import annotations

from shared.broker.kv_bucket import KvBucket
from shared.errors import CasConflict


class Turn:
    """Taken before a change, it lasts until the change can be seen by all (`TURN_TTL_S`).

    So two scalers of one pool never answer the same backlog twice: the second one decides anew,
    with the workers of the first one before its eyes. Nobody stands by for somebody else's death.
    """

    def __init__(self, bucket: KvBucket, pool: str, scaler_id: str) -> None:
        self._bucket = bucket
        self._pool = pool
        self._scaler_id = scaler_id.encode()

    async def take(self) -> bool:
        """Whether it is ours now. Raises BrokerError."""
        entry = await self._bucket.get(self._pool)
        if entry is not None and entry.value != self._scaler_id:
            return False
        try:
            await self._bucket.put_if(self._pool, self._scaler_id, entry.revision if entry else 0)
        except CasConflict:
            return False
        return True
