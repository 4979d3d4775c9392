"""DRY's fields: what breaks a repetition becomes tokens of the model, as llama.cpp finds them."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.jobs import dry_fields
from frontend.jobs.dry_fields import sequence_breakers
from frontend.models.token_search import TokenSearch
from frontend.text.token_texts import TokenTexts
from shared.errors import InvalidRequest
from shared.protocol.token_ids import unpack_token_ids
from tests.frontend.fields.test_validation import assert_refused, chat, completion_body
from tests.frontend.tiny_model import make_tokenizer

TOKENIZER = make_tokenizer()
TEXTS = TokenTexts(TOKENIZER)
VOCAB_SIZE = TOKENIZER.get_vocab_size()


def found(*texts: str) -> dict[tuple[int, ...], list[int]]:
    search = TokenSearch(TEXTS, VOCAB_SIZE)
    breakers = sequence_breakers(texts, search, TOKENIZER)
    return {breaker.tail: unpack_token_ids(breaker.head_ids) for breaker in breakers}


def ids_where(is_one: Any) -> list[int]:
    return [idx for idx in range(VOCAB_SIZE) if is_one(TEXTS.bytes_of(idx))]


def test_a_breaker_of_one_character_is_each_token_that_has_it() -> None:
    heads = found("\n", "e")[()]
    assert heads == ids_where(lambda token: b"\n" in token or b"e" in token)
    assert len(heads) > 1


def test_a_longer_one_may_begin_in_any_token_that_ends_with_its_beginning() -> None:
    tails = found("|>x")
    for part in ("|", "|>"):
        rest = tuple(TOKENIZER.encode("|>x"[len(part) :], add_special_tokens=False).ids)
        assert tails.pop(rest) == ids_where(lambda token, part=part: token.endswith(part.encode()))
    assert not tails


async def test_the_defaults_are_llama_cpps_and_travel_only_with_a_multiplier() -> None:
    plain = (await chat(dry_base=2.5, dry_sequence_breakers=["x"])).sampling
    assert (plain.dry_breakers, plain.needed_level) == ((), 1)
    asked = (await chat(dry_multiplier=0.8)).sampling
    assert (asked.dry_base, asked.dry_allowed_length, asked.dry_penalty_last_n) == (1.75, 2, -1)
    (breaker,) = asked.dry_breakers
    default = ids_where(lambda token: any(byte in token for byte in b'\n:"*'))
    assert unpack_token_ids(breaker.head_ids) == default
    own = await chat(dry_multiplier=1, dry_sequence_breakers=["\n"], dry_penalty_last_n=64)
    assert (own.sampling.dry_penalty_last_n, own.sampling.dry_multiplier) == (64, 1.0)
    assert unpack_token_ids(own.sampling.dry_breakers[0].head_ids) != default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dry_multiplier", -1),
        ("dry_multiplier", 1e9),
        ("dry_base", 0.5),
        ("dry_allowed_length", -1),
        ("dry_allowed_length", 1 << 70),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", []),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", ["x" * 41]),
        ("dry_sequence_breakers", ["x"] * 33),
    ],
)
async def test_what_is_out_of_bounds_is_named(name: str, value: Any) -> None:
    code = "invalid_value"
    await assert_refused("completions", completion_body(**{name: value}), 400, name, code)


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("dry_multiplier", "1", ""),
        ("dry_allowed_length", 1.5, ""),
        ("dry_sequence_breakers", "\n", ""),
        ("dry_sequence_breakers", [["\n"]], "[0]"),
    ],
)
async def test_wrong_types_are_named(name: str, value: Any, place: str) -> None:
    body = completion_body(dry_multiplier=1) | {name: value}
    await assert_refused("completions", body, 400, name + place, "invalid_type")


def test_breakers_in_too_many_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_fields, "MAX_BREAKING_TOKENS", 1)
    with pytest.raises(InvalidRequest, match="'dry_sequence_breakers' holds 'e'"):
        found("e")
