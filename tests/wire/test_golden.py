"""What released versions have stored is read by today's code, byte for byte as they wrote it."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shared.protocol
from frontend.stored.batches.batch_record import BatchRecord
from frontend.stored.batches.batch_results import LineResult
from frontend.stored.batches.batch_store import BatchMark
from frontend.stored.files.file_record import FileRecord
from shared.errors import MalformedMessage
from shared.protocol.codec import decode, decode_ownership, decode_token_frame, encode
from shared.protocol.log_records import Claim, End, Release
from shared.protocol.notices import (
    Cancel,
    Fenced,
    NodeAnswer,
    NodeHello,
    Offer,
    OfferAnswer,
    PagesKey,
    PrefixNotice,
    TenantCost,
    TenantGossip,
    TenantUse,
)
from shared.protocol.prefix_namespace import PublicPrefix
from shared.protocol.reply import ReplyParams, SealedReply, Surface
from shared.protocol.sealed_replies import seal, unseal
from shared.protocol.text import Held, ReplayReply, ReplayRequest, TextChunk, TextFrame
from tests.wire.__main__ import GOLDEN
from tests.wire.examples import (
    BY_TOKEN_REPLY,
    CALLS_REPLY,
    FRAMES,
    MAPS,
    NAMED_REPLY,
    ONE_PIECE_REPLY,
    PAYER_REPLY,
    REPLY,
    SOUND_REPLY,
    TRANSCRIPT_REPLY,
    VERSION,
    WHOLE_REPLY,
    written,
)

FILES = sorted(GOLDEN.glob("*/*.msgpack"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_stored_record_is_read(path: Path) -> None:
    data = path.read_bytes()
    if path.stem in FRAMES:
        assert decode_token_frame(data) == FRAMES[path.stem]
        return
    expected = MAPS[path.stem]
    assert decode(type(expected), data) == expected
    if isinstance(expected, Claim | Release | End):
        assert decode_ownership(data) == expected


def test_every_record_of_this_version_has_its_bytes() -> None:
    assert {path.stem for path in (GOLDEN / VERSION).iterdir()} == set(written())


# Structs of these modules that no role stores: what they say is gone when it was heard.
PASSING = {
    Cancel, Fenced, Held, NodeAnswer, NodeHello, Offer, OfferAnswer, PagesKey, PrefixNotice,
    PublicPrefix, ReplayReply, ReplayRequest, TenantCost, TenantGossip, TenantUse, TextChunk,
    TextFrame,
}  # fmt: skip
STORING = ("frontend.jobs.stored_response", "shared.broker.piece_chain")
RECORDS: set[type[msgspec.Struct]] = {
    BatchMark,
    BatchRecord,
    FileRecord,
    LineResult,
}  # of what clients keep


def test_every_record_has_an_example_and_every_field_a_value_in_one() -> None:
    told: dict[type, set[str]] = defaultdict(set)
    replies = (
        *(REPLY, WHOLE_REPLY, CALLS_REPLY, ONE_PIECE_REPLY, NAMED_REPLY, PAYER_REPLY),
        *(BY_TOKEN_REPLY, TRANSCRIPT_REPLY, SOUND_REPLY),
    )
    for example in (*MAPS.values(), *FRAMES.values(), *replies):
        note_values(example, told)
    assert stored_structs() <= told.keys()
    untold = {
        f"{struct.__name__}.{field.name}"
        for struct, names in told.items()
        for field in msgspec.structs.fields(struct)
        if field.name not in names
    }
    assert untold == set()


def stored_structs() -> set[type[msgspec.Struct]]:
    protocol = [info.name for info in pkgutil.iter_modules(shared.protocol.__path__)]
    modules = [*(f"shared.protocol.{name}" for name in protocol), *STORING]
    found = set(RECORDS)
    for name in modules:
        found |= {
            value
            for value in vars(importlib.import_module(name)).values()
            if isinstance(value, type)
            and issubclass(value, msgspec.Struct)
            and value.__module__ == name
            and not value.__subclasses__()  # what is made of a base is stored
        }
    return found - PASSING


def note_values(value: Any, told: dict[type, set[str]]) -> None:
    """The fields that do not have their default, of each struct that is found in it."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            inner = getattr(value, field.name)
            if inner != field.default:
                told[type(value)].add(field.name)
            note_values(inner, told)
    elif isinstance(value, list | tuple):
        for inner in value:
            note_values(inner, told)
    elif isinstance(value, dict):
        note_values([*value.values()], told)


def test_reply_data_is_whole_when_it_is_unsealed() -> None:
    assert unseal(seal(REPLY)) == REPLY
    sealed, whole = (
        {field.name: field.type for field in msgspec.structs.fields(one)}
        for one in (SealedReply, ReplyParams)
    )
    del sealed["rendering"]
    assert sealed.items() <= whole.items()


def test_who_does_not_render_passes_on_what_it_does_not_know() -> None:
    newer = msgspec.structs.replace(
        seal(REPLY), rendering=b"\x82\xa7surface\xa4poem\xa6rhymes\x93\x01\x02\x03"
    )
    request = msgspec.structs.replace(MAPS["request"], reply=newer)
    claim = msgspec.structs.replace(MAPS["claim"], reply=newer)
    read: Any = decode(type(request), encode(request))
    assert read.reply == newer
    assert decode_ownership(encode(claim)) == claim
    with pytest.raises(MalformedMessage, match="another build"):
        unseal(newer)


def test_a_field_that_a_frontend_does_not_know_is_left_out() -> None:
    newer = msgspec.structs.replace(
        seal(REPLY), rendering=b"\x82\xa7surface\xa8generate\xa6rhymes\x93\x01\x02\x03"
    )
    assert unseal(newer).surface is Surface.GENERATE
