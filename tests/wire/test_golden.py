"""What released versions have stored is read by today's code, byte for byte as they wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.errors import MalformedMessage
from shared.protocol.codec import decode, decode_ownership, decode_token_frame, encode
from shared.protocol.log_records import Claim, End, Release
from shared.protocol.reply import ReplyParams, SealedReply, Surface
from shared.protocol.sealed_replies import seal, unseal
from tests.wire.__main__ import GOLDEN
from tests.wire.examples import FRAME, MAPS, REPLY, VERSION, written

FILES = sorted(GOLDEN.glob("*/*.msgpack"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_stored_record_is_read(path: Path) -> None:
    data = path.read_bytes()
    if path.stem == "frame":
        assert decode_token_frame(data) == FRAME
        return
    expected = MAPS[path.stem]
    assert decode(type(expected), data) == expected
    if isinstance(expected, Claim | Release | End):
        assert decode_ownership(data) == expected


def test_every_record_of_this_version_has_its_bytes() -> None:
    assert {path.stem for path in (GOLDEN / VERSION).iterdir()} == set(written())


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
