"""Request bodies: JSON to typed structs, with errors that name the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec

from frontend.fields.peer_fields import REMEDIES, Touches, changing
from frontend.fields.token_rules import check_num_biased
from frontend.fields.type_errors import type_error
from frontend.fields.unknown_fields import UnknownFields
from shared.errors import InvalidRequest, RequestTooLarge, UnsupportedParameter
from shared.telemetry.log import get_logger

T = TypeVar("T")
Body = TypeVar("Body", bound=msgspec.Struct)
# By the name of a field: whether a value of it asks for something.
Refused = Mapping[str, Callable[[Any], bool]]

log = get_logger(__name__)

# Decoding keeps the event loop: what each costs at most, in microseconds of a usual core. Those in
# texts count as well; a text that has so many is longer than any context.
_LIST_US = 0.15
_COMMA_US = 0.045
_QUOTE_US = 0.11  # as of a key that no other object has
_BYTE_US = 0.0012
_MAX_US = 25_000  # half of what may be felt: another machine, or a busy one, takes longer
_MAX_FIELDS = 1000
_MAX_DEPTH = 100  # lists and objects inside each other: what is stored and told nests them in more
_MAX_MESSAGES = 4096
_MANY_COMMAS = 4096  # from here on, entries are counted before they are decoded
_MAX_NOTED = 1000  # fields that nobody knows

# Taken from OpenAI's API, without any effect here: SDKs and agents send them.
IGNORED = changing(Touches.NOTHING) | frozenset(
    {
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "verbosity",
        "prediction",
        "moderation",
        "reasoning_effort",
        "user",
        # Read before the route's own fields: what a client calls its request.
        "request_id",
        "rid",
    }
)


class _Structure(NamedTuple):
    """What must be made of a body, however short its texts are."""

    num_lists: int  # and objects
    num_commas: int
    num_quotes: int

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls(
            data.count(b"[") + data.count(b"{"),
            data.count(b","),
            data.count(b'"') - data.count(b'\\"'),  # those within texts are escaped
        )

    @property
    def decoding_us(self) -> float:
        return self.num_lists * _LIST_US + self.num_commas * _COMMA_US + self.num_quotes * _QUOTE_US


class RawBody:
    """The bytes of a body, and what it takes to read them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._structure = _Structure.of(data)

    @property
    def num_bytes(self) -> int:
        return len(self._data)

    @property
    def reading_ms(self) -> float:
        """What reading takes of the event loop, about: never more than the most that a body may
        take.
        """
        return min(self._structure.decoding_us, _MAX_US) / 1000 + len(self._data) * _BYTE_US / 1000

    def parse(self) -> dict[str, Any]:
        """A JSON object. Raises InvalidRequest, or RequestTooLarge when it takes long to decode."""
        self._check_cost()
        try:
            if self._structure.num_commas >= _MANY_COMMAS:
                _check_entries(self._data)
            body = msgspec.json.decode(self._data)
        except msgspec.DecodeError as exc:
            raise InvalidRequest(f"The body is not valid JSON: {exc}", code="invalid_json") from exc
        except UnicodeDecodeError as exc:  # of msgspec, whose own error is another
            raise InvalidRequest(
                "The body is not valid JSON: one of its texts is not UTF-8.", code="invalid_json"
            ) from exc
        except RecursionError as exc:
            raise _too_deep() from exc
        if not isinstance(body, dict):
            raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
        if self._structure.num_lists > _MAX_DEPTH:
            check_depth(body)
        if len(body) > _MAX_FIELDS:
            raise InvalidRequest(f"The body has {len(body)} fields, at most {_MAX_FIELDS}.")
        return body

    def _check_cost(self) -> None:
        """Raises RequestTooLarge."""
        structure = self._structure
        if structure.decoding_us > _MAX_US:
            raise RequestTooLarge(
                f"The body takes too long to read: it has {structure.num_lists} lists and objects, "
                f"{structure.num_commas} commas and {structure.num_quotes} quotes."
            )


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest, or RequestTooLarge when it takes long to decode."""
    return RawBody(data).parse()


def check_depth(value: Any) -> None:
    """Refuses JSON whose values nest too deep. Raises InvalidRequest."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> InvalidRequest:
    return InvalidRequest(
        f"The body is nested too deeply: at most {_MAX_DEPTH} lists and objects in each other.",
        code="invalid_json",
    )


def _check_entries(data: bytes) -> None:
    """Counts the entries of fields that any API bounds, ten times as fast as they are made.

    Raises InvalidRequest, or what decoding raises; other wrong types are found by who reads them.
    """
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:  # no object
        return
    if (messages := fields.get("messages")) is not None:
        check_num_messages(_num_items(messages))
    if (bias := fields.get("logit_bias")) is not None:
        check_num_biased(bytes(bias).count(b",") + 1)  # numbers by names, which hold no comma


def _num_items(value: msgspec.Raw) -> int:
    try:
        return len(msgspec.json.decode(value, type=list[msgspec.Raw]))
    except msgspec.ValidationError:  # no list
        return 0


def convert(body: Any, body_type: type[T], prefix: str = "") -> T:
    """`prefix`: what its fields are named behind. Raises InvalidRequest that names the field."""
    try:
        return msgspec.convert(body, body_type)
    except msgspec.ValidationError as exc:
        raise type_error(exc, body, body_type, prefix) from exc


def some_messages(messages: Sequence[T] | None, where: str = "messages") -> Sequence[T]:
    """One at least, and no more than a body may hold. Raises InvalidRequest."""
    if not messages:
        raise InvalidRequest(
            f"'{where}' is required and holds at least one message",
            param=where,
            code="missing_field" if messages is None else "invalid_value",
        )
    check_num_messages(len(messages))
    return messages


def check_num_messages(count: int) -> None:
    """Each costs the event loop some microseconds, however empty. Raises InvalidRequest."""
    if count > _MAX_MESSAGES:
        raise InvalidRequest(f"'messages' holds {count}, at most {_MAX_MESSAGES}", param="messages")


def rid_of_body(body: Mapping[str, Any]) -> str:
    """Raises InvalidRequest."""
    rid = body.get("rid")
    if not isinstance(rid, str) or not rid:
        raise InvalidRequest("'rid' is required: the id of a request", param="rid")
    return rid


def required_model(name: str | None) -> str:
    """Raises InvalidRequest."""
    if not name:
        raise InvalidRequest("'model' is required", param="model", code="missing_field")
    return name


class BodyReader(Generic[Body]):
    """Reads the bodies of one route.

    A field of `refused` is refused when its value asks for something, and one of `ignored` has no
    effect. What of those that nobody knows, the caller's `UnknownFields` say.
    """

    def __init__(
        self,
        body_type: type[Body],
        refused: Refused,
        ignored: frozenset[str] = IGNORED,
        *,
        prefix: str = "",
    ) -> None:
        """`prefix`: of an object inside a body, what its fields are named behind."""
        self._prefix = prefix
        self._body_type = body_type
        self._refused = refused
        self._known = frozenset(body_type.__struct_fields__) | refused.keys() | ignored
        self._noted: set[str] = set()

    def read(self, raw: Mapping[str, Any], unknown: UnknownFields) -> Body:
        """Raises UnsupportedParameter, or InvalidRequest that names the field."""
        self.check(raw, unknown)
        return convert(raw, self._body_type, self._prefix)

    def check(self, raw: Mapping[str, Any], unknown: UnknownFields) -> None:
        """The names alone. Raises UnsupportedParameter or UnknownField."""
        for name in sorted(raw.keys() & self._refused.keys()):
            value = raw[name]
            if value is not None and self._refused[name](value):
                detail = REMEDIES.get(name)
                raise UnsupportedParameter(
                    self._prefix + name, "is not supported here" + (f": {detail}" if detail else "")
                )
        names = sorted(raw.keys() - self._known)
        for name in names:
            unknown.meet(self._prefix + name, self._known)
        self._log(names)

    def _log(self, names: list[str]) -> None:
        """Each once."""
        for name in names:
            if name not in self._noted and len(self._noted) < _MAX_NOTED:
                self._noted.add(name)
                log.warning("unknown_field", field=name[:100], body=self._body_type.__name__)


def always(_: Any) -> bool:
    """Any value but null asks for something."""
    return True


def non_empty(value: Any) -> bool:
    """True, a number above 0, a filled string, list or object."""
    return bool(value)


# What chat or completions take, and no other route.
OF_OPENAI: Refused = {
    "add_special_tokens": lambda value: value is not True,
    "beam_width": lambda value: value != 1,
    "best_of": lambda value: value != 1,
    "early_stopping": non_empty,
    "length_penalty": lambda value: value != 1,
    "use_beam_search": non_empty,
    "return_token_ids": non_empty,
    "return_tokens_as_token_ids": non_empty,
    "truncate_prompt_tokens": always,
}
