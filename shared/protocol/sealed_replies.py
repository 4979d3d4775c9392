"""How the reply data of a request travels: what all decide by is readable, the rest is sealed.

Frontends alone look at how an answer is rendered. A role that is older than the frontend reads no
field of that, and passes it on unchanged.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from shared.errors import MalformedMessage
from shared.protocol.codec import pack_map, unpack_map
from shared.protocol.reply import ReplyParams, SealedReply

_READABLE = SealedReply.__struct_fields__[:-1]  # the last one is `rendering`
_readable_values = attrgetter(*_READABLE)
_IS_READABLE = frozenset(_READABLE)
_BUILTINS = (bytes,)


def seal(reply: ReplyParams) -> SealedReply:
    """The reply data for whoever works on the request."""
    fields: dict[str, Any] = msgspec.to_builtins(reply, builtin_types=_BUILTINS)
    rendering = {name: value for name, value in fields.items() if name not in _IS_READABLE}
    readable = dict(zip(_READABLE, _readable_values(reply), strict=True))
    return SealedReply(**readable, rendering=pack_map(rendering))


def unseal(reply: SealedReply) -> ReplyParams:
    """The reply data for a frontend.

    Raises MalformedMessage, also for what a newer one has sealed.
    """
    fields: dict[str, Any] = msgspec.to_builtins(reply, builtin_types=_BUILTINS)
    rendering = unpack_map(fields.pop("rendering", b""))
    try:
        return msgspec.convert({**rendering, **fields}, ReplyParams, builtin_types=_BUILTINS)
    except msgspec.ValidationError as exc:
        raise MalformedMessage(f"reply data of another build: {str(exc)[:200]}") from exc
