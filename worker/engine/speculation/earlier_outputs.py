"""What requests that have ended have said, by namespace: others may go on alike."""

from __future__ import annotations

import array
from collections import OrderedDict, deque
from typing import NamedTuple

from worker.engine.request.req import Req
from worker.engine.speculation.suffix_index import MAX_NEW_TOKENS, NOWHERE, Place, SuffixIndex

MAX_ERA_TOKENS = 1 << 14
MAX_TOKENS = 1 << 16  # of all namespaces: some 400 bytes each
MAX_OUTPUT_TOKENS = 2048  # of one request, its first ones
_BORDER = 0xFFFFFFFF  # no token: behind each output
_NUM_FOLLOWED = 64  # of a new request's tokens, the last ones


class _Era:
    """Some outputs, one behind the other."""

    def __init__(self) -> None:
        self.index = SuffixIndex(1)
        self.token_ids = array.array("I")

    def add(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.index.add(token_id)


class _Unread(NamedTuple):
    """An output that is not in any era yet."""

    namespace: bytes
    token_ids: array.array[int]


class EarlierOutputs:
    """Suffix automata of what was said, one and its predecessor for each namespace: when the newer
    one is full, the older one goes. Of the namespaces, the one that was not used for longest goes.

    A request sees its own namespace alone: from how fast its tokens come, it learns nothing of what
    tenants, or requests with another cache_salt, have been told.
    """

    def __init__(self, min_len: int, max_tokens: int = MAX_TOKENS) -> None:
        """`min_len`: tokens at the end of a request that must have been said before."""
        self.min_len = min_len
        self._max_tokens = max_tokens
        self._eras: OrderedDict[bytes, list[_Era]] = OrderedDict()  # newest first
        self._unread: deque[_Unread] = deque()

    @property
    def num_tokens(self) -> int:
        return sum(len(era.token_ids) for eras in self._eras.values() for era in eras)

    def cursor(self, req: Req) -> OutputCursor:
        return OutputCursor(self, req.options.namespace, max(0, len(req.token_ids) - _NUM_FOLLOWED))

    def eras(self, namespace: bytes) -> list[_Era]:
        if namespace in self._eras:
            self._eras.move_to_end(namespace)
        return self._eras.get(namespace, [])

    def add(self, req: Req) -> None:
        """It has ended: what it has said is read by and by."""
        start = req.num_prompt_tokens
        said = req.token_ids[start : start + MAX_OUTPUT_TOKENS]
        if len(said) > self.min_len:
            said.append(_BORDER)
            self._unread.append(_Unread(req.options.namespace, said))

    def read_some(self) -> None:
        """In less than a millisecond, once a step."""
        num_left = MAX_NEW_TOKENS
        while self._unread and num_left > 0:
            namespace, token_ids = self._unread.popleft()
            era = self._writable_era(namespace)
            for token_id in token_ids[:num_left]:
                era.add(token_id)
            if len(token_ids) > num_left:
                self._unread.appendleft(_Unread(namespace, token_ids[num_left:]))
            num_left -= len(token_ids)
        while len(self._unread) > MAX_NEW_TOKENS:  # they end faster than they are read
            self._unread.popleft()
        while self.num_tokens > self._max_tokens and len(self._eras) > 1:
            self._eras.popitem(last=False)

    def _writable_era(self, namespace: bytes) -> _Era:
        eras = self._eras.setdefault(namespace, [])
        self._eras.move_to_end(namespace)
        if not eras or len(eras[0].token_ids) >= MAX_ERA_TOKENS:
            eras.insert(0, _Era())
            del eras[2:]
        return eras[0]


class OutputCursor:
    """How far one request's last tokens have been said before. Nothing is looked at twice."""

    def __init__(self, earlier: EarlierOutputs, namespace: bytes, num_read: int) -> None:
        self._earlier = earlier
        self._namespace = namespace
        self._first = self._num_read = num_read
        self._places: dict[_Era, Place] = {}

    def continuation(self, token_ids: array.array[int], max_tokens: int) -> list[int]:
        """Up to `max_tokens`, and no more than are equal: what has gone on for longer goes on."""
        new_ids = token_ids[self._num_read :]
        self._num_read = len(token_ids)
        eras = self._earlier.eras(self._namespace)
        places: dict[_Era, Place] = {}
        for era in eras:
            place = self._places.get(era)
            followed = new_ids if place is not None else token_ids[self._first :][-_NUM_FOLLOWED:]
            place = place or NOWHERE
            for token_id in followed:
                place = era.index.follow(place, token_id)
            places[era] = place
        self._places = places
        if not eras:
            return []
        era = max(eras, key=lambda each: places[each].length)
        place = places[era]
        if place.length < self._earlier.min_len:
            return []
        start = era.index.end_of(place)
        found = era.token_ids[start : start + min(max_tokens, place.length)].tolist()
        return found[: found.index(_BORDER)] if _BORDER in found else found
