"""Which worker of a pool has served a session last."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from shared.protocol.prefix_chain import BLOCK_TOKENS, HASH_BYTES, PrefixChain

_MAX_OWN = 4096
_MAX_OTHERS = 65_536


class Turn(NamedTuple):
    """Where a session has got to here."""

    last_hash: bytes  # of its chain; b"" when that has no full block
    num_tokens: int  # in full blocks of the chain

    @classmethod
    def of(cls, chain: PrefixChain) -> Turn:
        hashes = chain.hashes
        return cls(hashes[-1] if hashes else b"", BLOCK_TOKENS * len(hashes))


def session_hash(namespace: bytes, owner: str, session: str) -> bytes:
    """Of those who share keys and values, and of one client: others may use the same words."""
    digest = hashlib.blake2b(namespace, digest_size=HASH_BYTES, person=b"jetflock-session")
    digest.update(f"{len(owner)} {owner} {session}".encode())
    return digest.digest()


class SessionRegistry:
    """A session is in one place: this worker's, or another's. The least recently used go first."""

    def __init__(self) -> None:
        self._own: OrderedDict[bytes, Turn] = OrderedDict()
        self._others: OrderedDict[bytes, str] = OrderedDict()  # session -> worker

    def note(self, session: bytes, turn: Turn) -> bool:
        """A turn runs here, or has ended here. Whether that is news for the others."""
        is_new = session not in self._own
        self._others.pop(session, None)
        self._own[session] = turn
        self._own.move_to_end(session)
        if len(self._own) > _MAX_OWN:
            self._own.popitem(last=False)
        return is_new

    def learn(self, worker: str, sessions: Sequence[bytes]) -> None:
        """Another worker runs a turn of these."""
        for session in sessions:
            self._own.pop(session, None)
            self._others[session] = worker
            self._others.move_to_end(session)
        while len(self._others) > _MAX_OTHERS:
            self._others.popitem(last=False)

    def own(self, session: bytes) -> Turn | None:
        return self._own.get(session)

    def other(self, session: bytes) -> str | None:
        """The worker that has it, if that is another one."""
        return self._others.get(session)

    def forget(self, session: bytes, worker: str) -> None:
        """The other worker has lost it."""
        if self._others.get(session) == worker:
            del self._others[session]

    def clear_own(self) -> None:
        """The cache is gone."""
        self._own.clear()
