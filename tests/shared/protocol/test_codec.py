"""The codec: what goes in comes out, and of bad bytes nothing escapes but ProtocolError."""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.errors import MalformedMessage, NewerLevel, ProtocolError, UnknownVersion
from shared.protocol import codec
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim, End, Release, TokenEntry, TokenFrame
from shared.protocol.notices import Cancel, Fenced
from shared.protocol.reply import ReplyParams, Surface, TextParams
from shared.protocol.request import FEATURE_LEVEL, GenerateRequest
from shared.protocol.role_cards import RoleCard
from shared.protocol.sampling import SamplingParams
from shared.protocol.sealed_replies import seal
from shared.protocol.text import (
    Done,
    ReplayReply,
    ReplayRequest,
    ReplayStatus,
    TextChunk,
    TextFrame,
)
from tests.garbage import BOMBS
from tests.worker.io_stage import make_request

REPLY = seal(ReplyParams("jf.out.f", Surface.CHAT, "m", 1, 3, "0" * 32))
CLAIM = Claim(0, "w", "n", 1, "$JS.ACK.x", "h", TextParams(stop=("a", "é")), REPLY, "p")
END = End(7, FinishReason.CANCEL, "f", reply=REPLY)
FINISH = Finish(FinishReason.STOP, matched="END")
TOKEN_FRAME = TokenFrame("w", 3, [TokenEntry("r", 5, 0, [1, 2]), TokenEntry("s", 6, 1, [], FINISH)])
TEXT_FRAME = TextFrame("d", [TextChunk("r", 2, 0, "日本"), TextChunk("s", 1, 9, "", [4], FINISH)])
MAPS = [
    GenerateRequest(
        "r", "p", "m", "v", "h", SamplingParams(5, (1 << 64) - 1), TextParams(), REPLY, 9.5, b"\0\1"
    ),
    Done("r", b"\1\0\0\0", "t", FINISH, None),
    ReplayRequest("r", 4, "jf.out.f"),
    ReplayReply(ReplayStatus.RUNNING, REPLY, TextChunk("r", 2, 0, "a", [1])),
    RoleCard("d", "detok"),
]

DECODERS: list[Callable[[bytes], Any]] = [
    codec.decode_token_frame,
    codec.decode_text_frame,
    codec.decode_ownership,
    codec.decode_control,
    *[functools.partial(codec.decode, type(m)) for m in MAPS],
]
VALID = [
    codec.encode_token_frame(TOKEN_FRAME),
    codec.encode_text_frame(TEXT_FRAME),
    *[codec.encode(m) for m in [*MAPS, CLAIM, END, Release(5, "w", True), Cancel("r")]],
]


@pytest.mark.parametrize("message", MAPS, ids=lambda m: type(m).__name__)
def test_maps_come_back(message: Any) -> None:
    assert codec.decode(type(message), codec.encode(message)) == message


@pytest.mark.parametrize("record", [CLAIM, END, Release(5, "w", progressed=True)])
def test_ownership_records_come_back(record: Any) -> None:
    assert codec.decode_ownership(codec.encode(record)) == record


@pytest.mark.parametrize("message", [Cancel("r"), Fenced("r", 5, "w")])
def test_control_messages_come_back(message: Any) -> None:
    assert codec.decode_control(codec.encode(message)) == message


def test_frames_come_back() -> None:
    assert codec.decode_token_frame(codec.encode_token_frame(TOKEN_FRAME)) == TOKEN_FRAME
    assert codec.decode_text_frame(codec.encode_text_frame(TEXT_FRAME)) == TEXT_FRAME


def test_keys_and_elements_of_a_later_build_are_ignored() -> None:
    body = msgpack.unpackb(codec.encode(RoleCard("d", "detok")))
    assert codec.decode(RoleCard, msgpack.packb(body | {"new": [1]})) == RoleCard("d", "detok")
    frame = msgpack.unpackb(codec.encode_token_frame(TOKEN_FRAME))
    frame[3][0] += [None, "new"]
    assert codec.decode_token_frame(msgpack.packb([*frame, "new"])) == TOKEN_FRAME


def test_another_version_is_refused_as_such() -> None:
    body = msgpack.unpackb(codec.encode(CLAIM))
    with pytest.raises(UnknownVersion, match="version 3"):
        codec.decode_ownership(msgpack.packb(body | {"v": 3}))
    frame = msgpack.unpackb(codec.encode_token_frame(TOKEN_FRAME))
    with pytest.raises(UnknownVersion, match="version 9"):
        codec.decode_token_frame(msgpack.packb([9, *frame[1:]]))


def test_an_unreadable_entry_hides_no_other() -> None:
    body = msgpack.unpackb(codec.encode_token_frame(TOKEN_FRAME))
    newer = ["0" * 32, 5, 0, [1], ["tired"]]  # a reason that this build does not know
    told: list[ProtocolError] = []
    data = msgpack.packb([*body[:3], [newer, *body[3]]])
    assert codec.decode_token_frame(data, told.append) == TOKEN_FRAME
    assert len(told) == 1
    with pytest.raises(MalformedMessage):
        codec.decode_token_frame(msgpack.packb([*body[:3], [newer]]))
    with pytest.raises(MalformedMessage):
        codec.decode_token_frame(msgpack.packb([body[0], 7, *body[2:]]))


def test_a_request_of_a_newer_level_is_told_from_a_broken_one() -> None:
    body = msgpack.unpackb(encode_example())
    assert codec.decode_request(msgpack.packb(body)).level == 1
    newer = FEATURE_LEVEL + 1
    for changes in ({"level": newer}, {"level": newer, "sampling": 7}):
        with pytest.raises(NewerLevel, match=f"level {newer}"):
            codec.decode_request(msgpack.packb(body | changes))
    with pytest.raises(MalformedMessage):
        codec.decode_request(msgpack.packb(body | {"sampling": 7}))


def encode_example() -> bytes:
    return codec.encode(make_request())


@pytest.mark.parametrize("token_id", [-1, 1 << 32, "7", None, 1.5])
def test_what_is_no_token_id_is_refused(token_id: object) -> None:
    data = msgpack.packb([2, "w", 1, [["r", 5, 0, [1, token_id]]]])
    with pytest.raises(MalformedMessage):
        codec.decode_token_frame(data)


@pytest.mark.parametrize(("epoch", "position"), [(-1, 0), (1, -1)])
def test_places_in_the_log_are_not_negative(epoch: int, position: int) -> None:
    with pytest.raises(MalformedMessage):
        codec.decode_token_frame(msgpack.packb([2, "w", 1, [["r", epoch, position, []]]]))


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xc1")
@example(b"\x91" * 2000)
@example(msgpack.packb(msgpack.Timestamp(1, 2)))
@example(msgpack.packb(msgpack.ExtType(5, b"x")))
@example(msgpack.packb([True, "w", 1, []]))
@example(msgpack.packb([[1], "w", 1, []]))
@example(msgpack.packb({"v": {}, "t": "claim"}))
@example(msgpack.packb({"v": 2, "t": ["claim"]}))
def test_random_bytes(data: bytes) -> None:
    assert_only_protocol_errors(data)


@settings(max_examples=4 * settings().max_examples)
@given(st.sampled_from(VALID), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255))))
def test_valid_messages_with_changed_bytes(data: bytes, changes: list[tuple[int, int]]) -> None:
    mutated = bytearray(data)
    for place, value in changes:
        mutated[place % len(mutated)] = value
    assert_only_protocol_errors(bytes(mutated))


@given(st.sampled_from(VALID), st.integers(0, 1 << 20))
def test_truncated_messages(data: bytes, length: int) -> None:
    assert_only_protocol_errors(data[: length % len(data)])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text()
    | st.binary() | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary())
    | st.builds(msgpack.Timestamp, st.integers(0, 1 << 32)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=4 * settings().max_examples)
@given(st.sampled_from(VALID), st.data())
def test_valid_messages_with_changed_values(data: bytes, source: st.DataObject) -> None:
    body = msgpack.unpackb(data)
    spot = source.draw(st.sampled_from(list(spots(body))))
    container, key = spot
    container[key] = source.draw(VALUES)
    assert_only_protocol_errors(msgpack.packb(body))


def spots(body: Any) -> list[tuple[Any, Any]]:
    """Every place in a nested value, as (container, key)."""
    keys = list(body) if isinstance(body, dict) else range(len(body))
    found: list[tuple[Any, Any]] = []
    for key in keys:
        found.append((body, key))
        if isinstance(body[key], (dict, list)):
            found += spots(body[key])
    return found


@pytest.mark.parametrize(
    ("valid", "decode"),
    [
        (codec.encode_token_frame(TOKEN_FRAME), codec.decode_token_frame),
        (codec.encode_text_frame(TEXT_FRAME), codec.decode_text_frame),
    ],
)
def test_a_frame_that_is_read_at_once_is_what_its_pieces_say(
    valid: bytes, decode: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    frames = [valid]
    for _ in range(3000):
        frame = bytearray(valid)
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(frame))
            frame[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
        frames.append(bytes(frame))
    at_once = [_outcome(decode, frame) for frame in frames]
    assert at_once[0] in (TOKEN_FRAME, TEXT_FRAME)
    monkeypatch.setattr(codec, "_read_at_once", lambda *_: None)
    assert [_outcome(decode, frame) for frame in frames] == at_once


def _outcome(decode: Callable[[bytes], Any], frame: bytes) -> Any:
    try:
        return decode(frame)
    except ProtocolError as exc:
        return type(exc), str(exc)


@pytest.mark.usefixtures("collected_as_in_a_role")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_no_more_than_50_ms(name: str) -> None:
    """Of CPU time, the best of three: a mebibyte may hold a million lists."""
    for decoder in DECODERS:
        times = []
        for _ in range(3):
            started = time.process_time()
            assert_only_protocol_errors(BOMBS[name], [decoder])
            times.append(time.process_time() - started)
        assert min(times) < 0.05, decoder


def test_errors_do_not_quote_what_was_sent() -> None:
    for data in (BOMBS["a long version"], msgpack.packb({"v": 2, "t": "x" * 5000})):
        for decoder in DECODERS:
            with pytest.raises(ProtocolError) as refused:
                decoder(data)
            assert len(str(refused.value)) < 300


def assert_only_protocol_errors(
    data: bytes, decoders: Sequence[Callable[[bytes], Any]] = DECODERS
) -> None:
    for decoder in decoders:
        with contextlib.suppress(ProtocolError):
            decoder(data)
