"""Pages of the kept streams that are over, oldest end first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Self

from frontend.fields.field_ranges import Range
from frontend.jobs.job import Caller
from frontend.surfaces.responses.store import ResponseStore
from frontend.text.wire_struct import Amount, Count, WireStruct
from shared.broker.jetstream import StoredMessage
from shared.errors import InvalidRequest, ProtocolError
from shared.protocol.reply import Surface
from shared.protocol.sealed_replies import unseal
from shared.protocol.text import Done

LIMIT = Range(low=1, high=1000)
SINCE = Range(low=0, high=10**11 - 1)  # unix seconds
_DEFAULT_LIMIT = "100"
_MAX_READ_BYTES = 4 << 20  # at a time, and about so many more: who has few need not wait for all
_CURSOR = re.compile(r"([a-z0-9_-]{1,32})\.([0-9]{1,18})")


class KeptStream(WireStruct, frozen=True, kw_only=True):
    """One choice of a request that is over."""

    id: str
    choice: Count
    model: str
    created: Count  # unix seconds
    ended: Amount
    finish_reason: str
    num_prompt_tokens: Count
    num_output_tokens: Count

    @classmethod
    def of(cls, message: StoredMessage, done: Done, caller: Caller) -> Self | None:
        """None for a response, and for what is another's."""
        if done.reply is None or not caller.may_read_kept(done.reply.owner):
            return None
        try:
            if unseal(done.reply).surface is Surface.RESPONSES:
                return None
        except ProtocolError:  # of a newer frontend, which can be asked for it
            return None
        return cls(
            id=done.reply.group_id,
            choice=done.reply.choice_idx,
            model=done.reply.model,
            created=done.reply.created,
            ended=round(message.time.timestamp(), 3),
            finish_reason=done.finish.reason.value,
            num_prompt_tokens=done.reply.num_prompt_tokens,
            num_output_tokens=len(done.token_ids) // 4,
        )


class KeptStreams(WireStruct, frozen=True, kw_only=True):
    """A page, which may be empty where others' were read: `has_more` says whether to go on."""

    object: Literal["list"]
    data: list[KeptStream]
    next: str  # the `after` of the next page, also later
    has_more: bool


class _Cursor(NamedTuple):
    prefix: str  # of the streams that hold the store
    seq: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidRequest."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise InvalidRequest(
                f"'after' is {text[:64]!r}, must be the 'next' of a page", param="after"
            )
        return cls(match[1], int(match[2]))


async def kept_page(
    stores: Sequence[ResponseStore], query: Mapping[str, str], caller: Caller
) -> KeptStreams:
    """`stores`: oldest first. Raises InvalidRequest or ServiceUnavailable."""
    limit = LIMIT.read("limit", query.get("limit", _DEFAULT_LIMIT))
    since = SINCE.read("since", query["since"]) if "since" in query else None
    start = None if since is None else datetime.fromtimestamp(since, UTC)
    model = query.get("model")
    cursor = _Cursor.parse(query["after"]) if query.get("after") else None
    # A store that is not there any more was read to its end, or its rest is gone.
    idx = next((i for i, each in enumerate(stores) if cursor and each.prefix == cursor.prefix), 0)
    store, seq = stores[idx], 1
    if cursor is not None and store.prefix == cursor.prefix:
        seq, start = max(1, cursor.seq), None
    ended = await store.ended(seq, start, _MAX_READ_BYTES)
    data, next_seq = [], ended.next_seq
    for message, done in ended.found:
        found = KeptStream.of(message, done, caller)
        if found is None or model not in (None, found.model) or found.ended < (since or 0):
            continue
        data.append(found)
        if len(data) == limit:
            next_seq = message.seq + 1
            break
    has_more = ended.has_more
    if not has_more and idx + 1 < len(stores):
        store, next_seq, has_more = stores[idx + 1], 1, True
    return KeptStreams(
        object="list", data=data, next=f"{store.prefix}.{next_seq}", has_more=has_more
    )
