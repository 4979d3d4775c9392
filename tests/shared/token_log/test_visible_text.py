"""Visible text: equal to the whole decoded, growing, and never one character too much."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from shared.protocol.reply import TextParams
from shared.token_log.visible_text import TokenizerDecoder, VisibleText
from tests.shared.small_tokenizers import (
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    word_piece_tokenizer,
)

STOPS = st.lists(
    st.sampled_from(
        ["STOP", "STO", "aa", "aab", "ab", "\n\n", "🙂", "日本", "本語", ". ", "é", "TOP"]
    ),
    max_size=3,
    unique=True,
).map(tuple)
TEXTS = st.text(alphabet=st.sampled_from("aab bSTOP\n.é日本語🙂x"), max_size=30)


class CharDecoder:
    """One id is one character."""

    def step(self, token_id: int) -> str | None:
        return chr(token_id)

    def flush(self) -> str:
        return ""


def make_visible(tokenizer: Tokenizer, params: TextParams | None = None) -> VisibleText:
    params = params or TextParams()
    return VisibleText(TokenizerDecoder(tokenizer, params), params)


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def show_all(visible: VisibleText, token_ids: Sequence[int]) -> str:
    """Feed, watch it grow, finish."""
    shown = ""
    for token_id in token_ids:
        matched = visible.add(token_id)
        text = visible.text
        assert text.startswith(shown)
        assert visible.visible_len == len(text)
        assert visible.text_from(len(shown)) == text[len(shown) :]
        shown = text
        if matched:
            break
    visible.finish()
    assert visible.text.startswith(shown)
    return visible.text


def show_chars(text: str, params: TextParams) -> tuple[str, str | None]:
    visible = VisibleText(CharDecoder(), params)
    return show_all(visible, [ord(c) for c in text]), visible.matched_stop


# Without stop strings: the decoder


@given(st.lists(st.integers(0, 340), max_size=60))
def test_byte_level_text_is_the_whole_decoded(token_ids: list[int]) -> None:
    tokenizer = byte_level_tokenizer()
    if not has_long_garbage(tokenizer, token_ids):
        assert show_all(make_visible(tokenizer), token_ids) == tokenizer.decode(token_ids)


@given(st.text(max_size=40))
def test_any_text_comes_out_as_it_went_in(text: str) -> None:
    tokenizer = byte_level_tokenizer()
    assert show_all(make_visible(tokenizer), tokenizer.encode(text).ids) == text


@given(st.text(max_size=20), st.text(max_size=20))
def test_the_prompt_is_context_and_never_shown(prompt: str, text: str) -> None:
    tokenizer = byte_level_tokenizer()
    tail = tuple(tokenizer.encode(prompt).ids[-6:])
    visible = make_visible(tokenizer, TextParams(prompt_tail=tail))
    assert show_all(visible, tokenizer.encode(text).ids) == text


def test_a_prompt_cut_within_a_character_shows_that_character_only() -> None:
    tokenizer = byte_level_tokenizer()
    byte_ids = [id_of(tokenizer, c) for c in "ðŁĻĤ"]  # the four bytes of 🙂
    tail = (*tokenizer.encode("hello wor").ids, *byte_ids[:2])
    visible = make_visible(tokenizer, TextParams(prompt_tail=tail))
    assert show_all(visible, [*byte_ids[2:], *tokenizer.encode(" ok").ids]) == "🙂 ok"


@pytest.mark.parametrize("end", range(1, 4))
def test_an_incomplete_character_is_held_back_until_the_finish(end: int) -> None:
    tokenizer = byte_level_tokenizer()
    byte_ids = [id_of(tokenizer, c) for c in "ðŁĻĤ"]
    visible = make_visible(tokenizer)
    for token_id in [*tokenizer.encode("a").ids, *byte_ids[:end]]:
        visible.add(token_id)
    assert visible.text == "a"
    visible.finish()
    assert visible.text == "a\N{REPLACEMENT CHARACTER}"


@given(st.lists(st.one_of(st.integers(259, 270), st.integers(3, 130)), max_size=40))
def test_byte_fallback_text_is_the_whole_decoded(token_ids: list[int]) -> None:
    """Bytes below 0x80 are characters, so nothing decoded changes later."""
    tokenizer = byte_fallback_tokenizer()
    assert show_all(make_visible(tokenizer), token_ids) == tokenizer.decode(token_ids)


@given(st.text(max_size=30))
def test_byte_fallback_keeps_characters_of_several_bytes(text: str) -> None:
    tokenizer = byte_fallback_tokenizer()
    token_ids = [3 + byte for byte in text.encode()]
    assert show_all(make_visible(tokenizer), token_ids) == text.removeprefix(" ")


def test_a_word_behind_the_prompt_keeps_its_space() -> None:
    tokenizer = byte_fallback_tokenizer()
    the = id_of(tokenizer, "▁the")
    assert show_all(make_visible(tokenizer), [the, the]) == "the the"
    visible = make_visible(tokenizer, TextParams(prompt_tail=(the,)))
    assert show_all(visible, [the]) == " the"


@given(st.sampled_from(["level", "fallback", "piece"]), st.data())
def test_any_ids_decode_to_something_and_always_to_the_same(name: str, data: st.DataObject) -> None:
    tokenizer = {
        "level": byte_level_tokenizer,
        "fallback": byte_fallback_tokenizer,
        "piece": word_piece_tokenizer,
    }[name]()
    ids = st.one_of(
        st.integers(0, tokenizer.get_vocab_size() + 3),
        st.sampled_from([-1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 70]),
    )
    token_ids = data.draw(st.lists(ids, max_size=60))
    tail = tuple(data.draw(st.lists(ids, max_size=6)))
    params = TextParams(prompt_tail=tail)
    text = show_all(make_visible(tokenizer, params), token_ids)
    at_once = make_visible(tokenizer, params)
    at_once.extend(token_ids)
    at_once.finish()
    assert (at_once.text, at_once.visible_len) == (text, len(text))


def test_unknown_ids_have_no_text() -> None:
    tokenizer = byte_level_tokenizer()
    a, b = tokenizer.encode("a").ids[0], tokenizer.encode("b").ids[0]
    token_ids = [a, 999_999, -5, 1 << 40, *[777_777] * 40, b]
    assert show_all(make_visible(tokenizer), token_ids) == "ab"


def test_text_that_would_change_is_not_taken_back() -> None:
    """Byte fallback spoils a run of bytes when one of them is wrong: what was shown stays."""
    tokenizer = byte_fallback_tokenizer()
    visible = make_visible(tokenizer)
    e_acute = [3 + byte for byte in "é".encode()]
    shown = show_all(visible, [*e_acute, 3 + 0xFF, id_of(tokenizer, "a")])
    assert shown == "é\N{REPLACEMENT CHARACTER}a"


def test_a_word_behind_undecodable_bytes_keeps_its_space() -> None:
    tokenizer = byte_fallback_tokenizer()
    the = id_of(tokenizer, "▁the")
    shown = show_all(make_visible(tokenizer), [the, *[3 + 0xFF] * 16, the, the])
    assert shown == "the" + "\N{REPLACEMENT CHARACTER}" * 16 + " the the"


def test_an_endless_run_of_undecodable_bytes_is_shown_on_the_way() -> None:
    tokenizer = byte_level_tokenizer()
    bad = id_of(tokenizer, "Ł")  # a continuation byte
    visible = make_visible(tokenizer)
    for _ in range(100):
        visible.add(bad)
    assert visible.visible_len > 50
    visible.finish()
    assert set(visible.text) == {"\N{REPLACEMENT CHARACTER}"}


def test_special_tokens_are_shown_on_request() -> None:
    tokenizer = byte_level_tokenizer()
    end = id_of(tokenizer, "<|end|>")
    a = tokenizer.encode("a").ids[0]
    assert show_all(make_visible(tokenizer), [a, end, a]) == "aa"
    params = TextParams(skip_special_tokens=False)
    assert show_all(make_visible(tokenizer, params), [a, end, a]) == "a<|end|>a"


def test_some_special_tokens_are_shown_on_request() -> None:
    tokenizer = byte_fallback_tokenizer()
    shown, hidden, the = (id_of(tokenizer, text) for text in ("<s>", "</s>", "▁the"))
    params = TextParams(shown_ids=(shown,))
    ids = [the, hidden, shown, the, shown, shown]
    assert show_all(make_visible(tokenizer, params), ids) == "the<s> the<s><s>"


def test_a_shown_token_ends_a_broken_character() -> None:
    tokenizer = byte_level_tokenizer()
    bad, end = id_of(tokenizer, "Ł"), id_of(tokenizer, "<|end|>")
    params = TextParams(shown_ids=(end,))
    shown = show_all(make_visible(tokenizer, params), [bad, end, *tokenizer.encode("a").ids])
    assert shown == "\N{REPLACEMENT CHARACTER}<|end|>a"


# Stop strings


@settings(max_examples=5 * settings().max_examples)
@given(TEXTS, STOPS, st.booleans(), st.integers(0, 8))
def test_the_cut_is_where_the_definition_says(
    text: str, stop: tuple[str, ...], include_stop: bool, min_tokens: int
) -> None:
    params = TextParams(stop=stop, include_stop=include_stop, min_tokens=min_tokens)
    assert show_chars(text, params) == expected(text, params)


@given(TEXTS, STOPS, st.booleans())
def test_the_cut_does_not_depend_on_how_text_is_tokenized(
    text: str, stop: tuple[str, ...], include_stop: bool
) -> None:
    """But for a longer stop string that ends in the same token, and starts earlier."""
    params = TextParams(stop=stop[:1], include_stop=include_stop)
    tokenizer = byte_level_tokenizer()
    visible, at_once = make_visible(tokenizer, params), make_visible(tokenizer, params)
    shown = show_all(visible, tokenizer.encode(text).ids)
    at_once.extend(tokenizer.encode(text).ids)
    at_once.finish()
    assert (shown, visible.matched_stop) == expected(text, params)
    assert (at_once.text, at_once.matched_stop) == (shown, visible.matched_stop)


@given(TEXTS, STOPS)
def test_what_is_held_back_could_still_become_a_stop_string(
    text: str, stop: tuple[str, ...]
) -> None:
    visible = VisibleText(CharDecoder(), TextParams(stop=stop))
    for i, char in enumerate(text):
        if visible.add(ord(char)):
            return
        held_back = text[visible.visible_len : i + 1]
        assert not held_back or any(s.startswith(held_back) for s in stop)
        for s in stop:  # and nothing shown could
            for length in range(len(held_back) + 1, len(s)):
                assert not text[: i + 1].endswith(s[:length])


def test_nothing_follows_a_stop_string() -> None:
    visible = VisibleText(CharDecoder(), TextParams(stop=("b",)))
    assert not visible.add(ord("a"))
    assert visible.add(ord("b"))
    assert not visible.add(ord("c"))
    visible.finish()
    assert (visible.text, visible.num_tokens) == ("a", 2)


def test_the_stop_string_that_ends_first_wins() -> None:
    params = TextParams(stop=("bcd", "abcdef", "cd"), include_stop=True)
    assert show_chars("xabcdef", params) == ("xabcd", "bcd")


def test_a_stop_string_across_the_border_of_min_tokens_counts() -> None:
    params = TextParams(stop=("\n\n",), min_tokens=2)
    assert show_chars("a\n\nb", params) == ("a", "\n\n")
    assert show_chars("\n\nab", params) == ("\n\nab", None)


def test_a_stop_string_within_min_tokens_does_not_count_later() -> None:
    params = TextParams(stop=("abcx", "bc"), min_tokens=3)
    assert show_chars("abcd", params) == ("abcd", None)
    assert show_chars("abcx", params) == ("", "abcx")


def test_text_from_joins_only_what_is_asked_for() -> None:
    visible = VisibleText(CharDecoder(), TextParams())
    for char in "hello":
        visible.add(ord(char))
    assert [visible.text_from(i) for i in range(7)] == ["hello", "ello", "llo", "lo", "o", "", ""]


def expected(text: str, params: TextParams) -> tuple[str, str | None]:
    """The definition, with one character a token."""
    for end in range(1, len(text) + 1):
        if end <= params.min_tokens:
            continue
        matches = [s for s in params.stop if text[:end].endswith(s)]
        if matches:
            longest = max(matches, key=len)
            return text[: end if params.include_stop else end - len(longest)], longest
    return text, None


def has_long_garbage(tokenizer: Tokenizer, token_ids: list[int]) -> bool:
    """Whether a run of tokens decodes to nothing but replacement characters, or to nothing."""
    run = 0
    for token_id in token_ids:
        text = tokenizer.decode([token_id])
        run = run + 1 if not text or text.endswith("\N{REPLACEMENT CHARACTER}") else 0
        if run >= 8:
            return True
    return False
