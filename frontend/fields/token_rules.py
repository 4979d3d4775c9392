"""Fields about single tokens: logit_bias, allowed_token_ids, bad_words, bad_token_ids."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from shared.errors import InvalidRequest

MAX_BIASED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 65_536
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256


def checked_bias(bias: dict[str, float] | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """OpenAI's map of token id to bias. Raises InvalidRequest."""
    if not bias:
        return ()
    check_num_biased(len(bias))
    checked: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit()):
            raise InvalidRequest(
                f"'logit_bias' has the key {key[:40]!r}, keys are token ids", param="logit_bias"
            )
        if not -100 <= value <= 100:
            raise InvalidRequest(
                f"'logit_bias' of token {key} is {value:g}, must be at least -100 and at most 100",
                param="logit_bias",
            )
        checked[int(key)] = float(value)
    check_token_ids("logit_bias", list(checked), vocab_size)
    return tuple(checked.items())


def check_num_biased(count: int) -> None:
    """Checks the length of `logit_bias`. Raises InvalidRequest."""
    _check_number("logit_bias", count, "tokens", MAX_BIASED_TOKENS)


def checked_allowed_ids(token_ids: list[int] | None, vocab_size: int) -> tuple[int, ...]:
    """Raises InvalidRequest; an empty list would allow nothing."""
    if token_ids is None:
        return ()
    if not token_ids:
        raise InvalidRequest(
            "'allowed_token_ids' is empty: nothing could be chosen", param="allowed_token_ids"
        )
    _check_number("allowed_token_ids", len(token_ids), "ids", MAX_ALLOWED_TOKENS)
    check_token_ids("allowed_token_ids", token_ids, vocab_size)
    return tuple(dict.fromkeys(token_ids))


def bad_sequences(
    words: list[str] | None,
    token_ids: list[int] | None,
    tokenizer: Tokenizer,
    vocab_size: int,
) -> tuple[tuple[int, ...], ...]:
    """Token sequences of the words, as they come at the start of a text and behind a space.

    Raises InvalidRequest.
    """
    if not words and not token_ids:
        return ()
    words, token_ids = words or [], token_ids or []
    _check_number("bad_words", len(words), "words", MAX_BAD_WORDS)
    _check_number("bad_token_ids", len(token_ids), "ids", MAX_BIASED_TOKENS)
    check_token_ids("bad_token_ids", token_ids, vocab_size)
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word.strip() or len(word) > MAX_BAD_WORD_CHARS:
            raise InvalidRequest(
                f"'bad_words' holds {word[:40]!r}, of {len(word)} characters: a word has 1 to "
                f"{MAX_BAD_WORD_CHARS}, not all of them blank",
                param="bad_words",
            )
        for text in (word.lstrip(), " " + word.lstrip()):
            ids = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
            if not ids:
                raise InvalidRequest(
                    f"'bad_words' holds {word[:40]!r}, which has no tokens", param="bad_words"
                )
            sequences[ids] = None
    sequences.update({(token_id,): None for token_id in token_ids})
    return tuple(sequences)


def check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises InvalidRequest when an id is not in the vocabulary."""
    if not token_ids:
        return
    low, high = min(token_ids), max(token_ids)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise InvalidRequest(
            f"'{name}' holds {wrong}, token ids of this model are 0 to {vocab_size - 1}",
            param=name,
        )


def _check_number(name: str, count: int, what: str, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(f"'{name}' has {count} {what}, at most {limit}", param=name)
