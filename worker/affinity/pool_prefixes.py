"""Who in a pool of workers has which prefix, and has served which session last."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shared.protocol.prefix_chain import BLOCK_TOKENS, HASH_BYTES, PrefixChain, with_image_ids
from shared.protocol.prefix_namespace import PublicPrefix, prefix_namespace, public_namespace
from shared.protocol.request import GenerateRequest, ImageSpan
from worker.weights.worker_model import ServedWeights

MIN_GAIN_BLOCKS = 2  # less is computed as quickly as it is offered
_MAX_OTHER_BLOCKS = 16_384  # of each other worker
_MAX_OWN_SESSIONS = 4096
_MAX_OTHER_SESSIONS = 65_536


class Turn(NamedTuple):
    """Where a session has got to here."""

    last_hash: bytes  # of its chain; b"" when that has no full block
    num_tokens: int  # in full blocks of the chain

    @classmethod
    def of(cls, chain: PrefixChain) -> Turn:
        hashes = chain.hashes
        return cls(hashes[-1] if hashes else b"", BLOCK_TOKENS * len(hashes))


def session_hash(namespace: bytes, owner: str, session: str) -> bytes:
    """Names a session among those who share keys and values, and one client's: others may use the
    same words.
    """
    digest = hashlib.blake2b(namespace, digest_size=HASH_BYTES, person=b"jetflock-session")
    digest.update(f"{len(owner)} {owner} {session}".encode())
    return digest.digest()


class SessionRegistry:
    """Which worker of a pool has served a session last: this one, or another. The least recently
    used go first.
    """

    def __init__(self) -> None:
        self._own: OrderedDict[bytes, Turn] = OrderedDict()
        self._others: OrderedDict[bytes, str] = OrderedDict()  # session -> worker

    def note(self, session: bytes, turn: Turn) -> bool:
        """A turn runs here, or has ended here. Whether that is news for the others."""
        is_new = session not in self._own
        self._others.pop(session, None)
        self._own[session] = turn
        self._own.move_to_end(session)
        if len(self._own) > _MAX_OWN_SESSIONS:
            self._own.popitem(last=False)
        return is_new

    def learn(self, worker: str, sessions: Sequence[bytes]) -> None:
        """Another worker runs a turn of these."""
        for session in sessions:
            self._own.pop(session, None)
            self._others[session] = worker
            self._others.move_to_end(session)
        while len(self._others) > _MAX_OTHER_SESSIONS:
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


class PrefixSet:
    """Prefixes that one worker has, as far as somebody knows: at most `max_blocks` chain hashes,
    of which the least recently used are forgotten first.

    Those that are kept, `max_kept` and half of all at most, are so when their time is over.
    """

    def __init__(
        self, max_blocks: int, max_kept: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_blocks = max_blocks
        self._max_kept = min(max_kept, max_blocks // 2)
        self._clock = clock
        self._hashes: OrderedDict[bytes, None] = OrderedDict()  # the latest used last
        self._kept: OrderedDict[bytes, float] = OrderedDict()  # until when; the latest asked last

    def __len__(self) -> int:
        return len(self._hashes)

    def resize(self, max_blocks: int, max_kept: int = 0) -> None:
        self.max_blocks = max_blocks
        self._max_kept = min(max_kept, max_blocks // 2)
        self._forget_surplus()

    def clear(self) -> None:
        self._hashes.clear()
        self._kept.clear()

    def keep(self, hashes: Sequence[bytes], until: float) -> None:
        """Keeps what was added of a chain: it is forgotten later than by use."""
        for each in reversed(hashes):
            if each in self._hashes:
                self._kept[each] = max(until, self._kept.pop(each, 0.0))
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)

    def add(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Mark a chain as used; returns what was not there and is now."""
        new = [each for each in hashes if each not in self._hashes]
        for each in reversed(hashes):  # the root last: what a chain loses first is its end
            self._hashes[each] = None
            self._hashes.move_to_end(each)
        self._forget_surplus()
        return [each for each in new if each in self._hashes]

    def discard(self, hashes: Sequence[bytes]) -> None:
        for each in hashes:
            self._hashes.pop(each, None)
            self._kept.pop(each, None)

    def num_matching(self, hashes: Sequence[bytes]) -> int:
        """Blocks of a chain that are here: the longest known prefix, as a rule.

        Looks at few of them. Where the chain's beginning was forgotten it may find less, and it
        never finds more: the hash of the last block that it counts is here.
        """
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._hashes:
                low = middle
            else:
                high = middle - 1
        return low

    def recent(self, max_blocks: int) -> list[bytes]:
        """The latest used first."""
        return list(itertools.islice(reversed(self._hashes), max_blocks))

    def _forget_surplus(self) -> None:
        while len(self._hashes) > self.max_blocks:
            oldest, _ = self._hashes.popitem(last=False)
            if len(self._kept) < len(self._hashes) and self._kept.get(oldest, 0.0) > self._clock():
                self._hashes[oldest] = None  # once more round
            else:
                self._kept.pop(oldest, None)


class Holder(NamedTuple):
    """A worker, and how much of a chain it has."""

    worker: str
    num_blocks: int


class Unpublished(NamedTuple):
    """What the other workers do not know yet."""

    hashes: list[bytes]
    sessions: list[bytes]


class PoolPrefixes:
    """What this worker has computed, and what the others of its pool have told of themselves.

    `own` is an estimate: the chains of the latest requests, as many as the KV cache has room for.
    The engine evicts by use as well, but by its own count, so that now and then a prefix that is
    believed to be here is gone, or the other way round. Either costs one prefill.
    """

    def __init__(self, weights: ServedWeights) -> None:
        self._weights = weights
        self.own = PrefixSet(0)
        self._others: dict[str, PrefixSet] = {}
        self._sessions = SessionRegistry()
        self._unpublished = Unpublished([], [])
        self._has_unpublished = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether this worker takes part."""
        return self.own.max_blocks > 0

    def open(self, num_kv_tokens: int, num_pinnable_tokens: int = 0) -> None:
        """The engine is ready, and its cache empty."""
        self.close()
        self.own.resize(num_kv_tokens // BLOCK_TOKENS, num_pinnable_tokens // BLOCK_TOKENS)

    def close(self) -> None:
        """The cache is gone, or flushed."""
        self.own.clear()
        self._sessions.clear_own()

    def namespace(self, request: GenerateRequest) -> bytes:
        """Only requests with the same one share keys and values."""
        return prefix_namespace(self._weights.revision, request.adapter, request.cache_salt)

    def public(self, request: GenerateRequest) -> PublicPrefix | None:
        """What of its prompt is shared under no salt; never more than the prompt."""
        num_tokens = min(request.num_public_tokens, request.reply.num_prompt_tokens)
        if not num_tokens:
            return None
        return PublicPrefix(public_namespace(self._weights.revision, request.adapter), num_tokens)

    def chain(self, request: GenerateRequest, prompt_ids: bytes | None = None) -> PrefixChain:
        """The chain of its prompt, as it was fetched or as the request has it, maybe empty."""
        ids = request.prompt_ids if prompt_ids is None else prompt_ids
        images = request.images
        if request.embeds is not None:  # as an image of that size
            images = (ImageSpan(0, len(ids) // 4, request.embeds.digest),)
        return PrefixChain(
            self.namespace(request), with_image_ids(ids, images), self.public(request)
        )

    def note(self, chain: PrefixChain, request: GenerateRequest | None = None) -> None:
        """The engine computes these tokens now, or has computed them, for a request."""
        new = self.own.add(chain.hashes)
        session = b"" if request is None else self._session(request)
        has_come = bool(session) and self._sessions.note(session, Turn.of(chain))
        self._unpublished.hashes.extend(new)
        self._unpublished.sessions.extend([session] if has_come else [])
        for waiting in self._unpublished:  # nobody may be there to be told
            del waiting[:-_MAX_OTHER_BLOCKS]
        if new or has_come:
            self._has_unpublished.set()

    def keep(self, chain: PrefixChain, request: GenerateRequest) -> None:
        """The engine evicts the beginning of its prompt after all others, if it asks for that."""
        keep, num_tokens = request.keep, request.reply.num_prompt_tokens
        if keep is None:
            return
        if keep.num_tokens:
            num_tokens = min(num_tokens, keep.num_tokens)
        hashes = chain.hashes[: num_tokens // BLOCK_TOKENS]
        self.own.keep(hashes, time.monotonic() + keep.seconds)

    async def next_unpublished(self) -> Unpublished:
        """Wait for something that the others have not been told, and take it."""
        await self._has_unpublished.wait()
        self._has_unpublished.clear()
        unpublished, self._unpublished = self._unpublished, Unpublished([], [])
        return unpublished

    def learn(self, worker: str, hashes: Sequence[bytes], sessions: Sequence[bytes] = ()) -> None:
        """Another worker says that it has these."""
        self._sessions.learn(worker, sessions)
        self._others.setdefault(worker, PrefixSet(_MAX_OTHER_BLOCKS)).add(hashes)

    def unlearn(self, worker: str, chain: PrefixChain, request: GenerateRequest) -> None:
        """It does not have this chain any more, nor what it had of the request's session."""
        if worker in self._others:
            self._others[worker].discard(chain.hashes)
        if request.session:
            self._sessions.forget(self._session(request), worker)

    def forget(self, worker: str) -> None:
        """It is gone, or does not answer. What it has is learnt again when it tells it."""
        self._others.pop(worker, None)

    @property
    def others(self) -> set[str]:
        """Workers that have said what they have."""
        return set(self._others)

    @property
    def has_others(self) -> bool:
        return bool(self._others)

    def best_other(self, chain: PrefixChain) -> Holder | None:
        """The other worker with the longest part of it; None when nobody has a block."""
        best = max(
            (Holder(name, told.num_matching(chain.hashes)) for name, told in self._others.items()),
            key=lambda holder: holder.num_blocks,
            default=None,
        )
        return best if best is not None and best.num_blocks else None

    def place_for(self, request: GenerateRequest, chain: PrefixChain) -> Holder | None:
        """The other worker to offer it to; None when none has clearly more of its prefix.

        The one that has served its session last needs to have but a block more, and of two that
        have about as much it is preferred. Of a prompt that is in the object store nobody here
        knows a hash: there the session alone decides.
        """
        best = self.best_other(chain)
        home = self._home(request, chain)
        num_own = self.own.num_matching(chain.hashes)
        if home is not None and (home.num_blocks > num_own or not request.prompt_ids):
            num_missed = 0 if best is None else best.num_blocks - home.num_blocks
            if num_missed < MIN_GAIN_BLOCKS:
                return home
        if best is not None and best.num_blocks - num_own >= MIN_GAIN_BLOCKS:
            return best
        return None

    def num_gained(self, request: GenerateRequest, chain: PrefixChain, num_elsewhere: int) -> int:
        """Tokens of its prompt that are here and not there, where it has that many blocks.

        0 when they are too few to be worth an offer.
        """
        session = self._session(request)
        turn = self._sessions.own(session) if session else None
        if not request.prompt_ids:  # its chain is that of the session's last turn, we trust
            is_here = turn is not None and self.own.num_matching([turn.last_hash]) > 0
            return min(turn.num_tokens, request.reply.num_prompt_tokens) if turn and is_here else 0
        num_blocks = self.own.num_matching(chain.hashes) - num_elsewhere
        return num_blocks * BLOCK_TOKENS if num_blocks >= (1 if turn else MIN_GAIN_BLOCKS) else 0

    def may_have_place(self, request: GenerateRequest) -> bool:
        """Whether there is something to look another worker up by."""
        if request.prompt_ids or not request.session:
            return bool(request.prompt_ids)
        return self._sessions.other(self._session(request)) is not None

    def _home(self, request: GenerateRequest, chain: PrefixChain) -> Holder | None:
        session = self._session(request)
        worker = self._sessions.other(session) if session else None
        if worker is None or worker not in self._others:
            return None
        return Holder(worker, self._others[worker].num_matching(chain.hashes))

    def _session(self, request: GenerateRequest) -> bytes:
        """b"" for none."""
        if not request.session:
            return b""
        return session_hash(self.namespace(request), request.reply.owner, request.session)
