"""The fields of DRY: what ends a repetition, in a model's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from frontend.fields.sampling_fields import SamplingFields
from frontend.jobs.job import Caller
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ServedModel
from frontend.models.token_search import TokenSearch
from shared.errors import InvalidRequest
from shared.protocol.sampling import SequenceBreaker
from shared.protocol.token_ids import pack_token_ids

PARAM = "dry_sequence_breakers"
DEFAULT_BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's
MAX_BREAKERS = 32
MAX_BREAKER_CHARS = 40
MAX_TAIL_LEN = 20  # tokens of a breaker behind its first one
MAX_BREAKING_TOKENS = 16_384  # they travel with the request: four bytes each
# For the threads that share the work: as long as encoding so much text takes.
_WORK_CHARS = 16_384


async def dry_breakers(
    fields: SamplingFields, encoder: PromptEncoder, caller: Caller, model: ServedModel
) -> tuple[SequenceBreaker, ...]:
    """() without DRY. Raises InvalidRequest, also where there is none."""
    breakers = fields.dry_sequence_breakers
    if breakers is not None:
        _check(breakers)
    if not fields.dry_multiplier:
        return ()
    texts = tuple(dict.fromkeys(DEFAULT_BREAKERS if breakers is None else breakers))
    text = model.text
    return await encoder.run(
        caller, _WORK_CHARS, lambda: sequence_breakers(texts, text.token_search, text.tokenizer)
    )


def sequence_breakers(
    texts: Sequence[str], search: TokenSearch, tokenizer: Tokenizer
) -> tuple[SequenceBreaker, ...]:
    """The breakers as llama.cpp finds them: tokens that have the text in them, and those that end
    with a beginning of it, with the tokens of its rest behind. Raises InvalidRequest.
    """
    found: dict[tuple[int, ...], set[int]] = {}
    for text in texts:
        num_ids = search.num_containing(text.encode()) + sum(map(len, found.values()))
        if num_ids <= MAX_BREAKING_TOKENS:
            for tail, head_ids in _of_text(text, search, tokenizer):
                found.setdefault(tail, set()).update(head_ids)
            num_ids = sum(map(len, found.values()))
        if num_ids > MAX_BREAKING_TOKENS:
            raise InvalidRequest(
                f"'{PARAM}' holds {text!r}: up to it they are in {num_ids} tokens of the model, at "
                f"most {MAX_BREAKING_TOKENS}",
                param=PARAM,
            )
    return tuple(
        SequenceBreaker(pack_token_ids(sorted(ids)), tail) for tail, ids in found.items() if ids
    )


def _of_text(
    text: str, search: TokenSearch, tokenizer: Tokenizer
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Tails, and their heads."""
    yield (), search.containing(text.encode())
    for num_chars in range(1, len(text)):
        rest = tokenizer.encode(text[num_chars:], add_special_tokens=False).ids
        yield tuple(rest[:MAX_TAIL_LEN]), search.ending_with(text[:num_chars].encode())


def _check(breakers: list[str]) -> None:
    """Raises InvalidRequest."""
    if not 1 <= len(breakers) <= MAX_BREAKERS:
        raise InvalidRequest(
            f"'{PARAM}' has {len(breakers)} texts, must have 1 to {MAX_BREAKERS}", param=PARAM
        )
    for text in breakers:
        if not 1 <= len(text) <= MAX_BREAKER_CHARS:
            raise InvalidRequest(
                f"'{PARAM}' holds {text[:MAX_BREAKER_CHARS]!r}, of {len(text)} characters: each "
                f"has 1 to {MAX_BREAKER_CHARS}",
                param=PARAM,
            )
