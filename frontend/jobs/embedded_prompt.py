"""Prompts that are embeddings, in the place of tokens."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Any

from frontend.fields.logprob_fields import LogprobOptions
from frontend.fields.stored_tensor import Matrix, matrix_of_file, matrix_of_lists
from frontend.jobs.job import Caller, Prompt
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ServedModel
from shared.errors import ContextLengthExceeded, InvalidRequest, UnsupportedParameter
from shared.protocol.request import PromptEmbeds
from shared.protocol.sampling import SamplingParams

GivenEmbeds = str | list[list[Any]]  # a tensor in base64, or rows of numbers
_CHARS_OF_NUMBER = 16  # to read a number takes as long as to encode so much text
_NO_TOKENS = "and a prompt of embeddings has none"


def embeds_list(value: Any, name: str, max_prompts: int) -> list[GivenEmbeds]:
    """One, or a list of them. Raises InvalidRequest."""
    if isinstance(value, str) or is_matrix(value):
        return [value]
    is_list = isinstance(value, list) and bool(value)
    if not is_list or not all(isinstance(each, str) or is_matrix(each) for each in value):
        raise InvalidRequest(
            f"'{name}' must be a tensor in base64, a list of rows of numbers, or a list of either",
            param=name,
            code="invalid_type",
        )
    if len(value) > max_prompts:
        raise InvalidRequest(
            f"'{name}' holds {len(value)} prompts, at most {max_prompts}", param=name
        )
    return list(value)


def is_matrix(value: Any) -> bool:
    """Whether it is rows of numbers."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, list) and row and isinstance(row[0], float | int) for row in value)
    )


async def embedded_prompt(
    encoder: PromptEncoder, caller: Caller, model: ServedModel, given: GivenEmbeds, name: str
) -> Prompt:
    """Raises InvalidRequest."""
    if model.limits.takes_no_embeds:
        raise UnsupportedParameter(
            name, f"is not possible: no worker of the model '{model.name}' reads embeddings now"
        )
    num_chars = (
        len(given) // 4 if isinstance(given, str) else _CHARS_OF_NUMBER * len(given) * len(given[0])
    )
    return await encoder.run(caller, num_chars, lambda: _prompt_of(_read(given, name), model, name))


def _read(given: GivenEmbeds, name: str) -> Matrix:
    if not isinstance(given, str):
        return matrix_of_lists(given, name)
    try:
        data = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"'{name}' is no base64", param=name) from exc
    return matrix_of_file(data, name)


def _prompt_of(matrix: Matrix, model: ServedModel, name: str) -> Prompt:
    card = model.card
    if card.embedding is not None and matrix.width != card.embedding.num_dimensions:
        raise InvalidRequest(
            f"'{name}' has {matrix.width} numbers in a row, the model '{model.name}' "
            f"{card.embedding.num_dimensions}",
            param=name,
        )
    if matrix.num_rows > card.max_context_len:
        raise ContextLengthExceeded(
            matrix.num_rows, card.max_context_len, None, name, subject=f"'{name}'"
        )
    digest = hashlib.sha256(matrix.data).digest()
    return Prompt(
        [0] * matrix.num_rows,
        pixels=(matrix.data,),
        embeds=PromptEmbeds(matrix.width, matrix.dtype, digest),
    )


def check_reads_no_prompt(
    params: SamplingParams, logprobs: LogprobOptions, others: Sequence[tuple[str, Any]]
) -> None:
    """Refuses what looks at the tokens of a prompt; `others` are fields of a body by their names.

    Raises UnsupportedParameter.
    """
    for name, is_wanted in (
        ("repetition_penalty", params.repetition_penalty != 1.0),
        ("repeat_last_n", params.penalty_last_n is not None),
        ("dry_multiplier", params.dry_multiplier > 0),
        ("logits_processors", params.logits_processors),
        ("prompt_logprobs", logprobs.num_scored_top is not None),
        *others,
    ):
        if is_wanted:
            raise UnsupportedParameter(name, f"looks at the tokens of a prompt, {_NO_TOKENS}")
