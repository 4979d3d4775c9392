"""What scores and rankings have in common: pairs of a query and a text become requests."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from frontend.fields.field_ranges import RANGES
from frontend.fields.pooled_fields import (
    MAX_INPUTS,
    MAX_STREAMED_INPUTS,
    PooledFields,
    max_input_tokens,
    pooled_sampling,
)
from frontend.fields.request_body import Refused, always, non_empty, required_model
from frontend.jobs.job import AnswerOptions, Caller, Job, Prompt
from frontend.jobs.prompt_encoder import PromptEncoder, groups
from frontend.models.model_directory import ModelDirectory, ServedModel
from frontend.surfaces.scores.pair_layout import NoRoom, layout_of
from shared.errors import ContextLengthExceeded, InvalidRequest
from shared.protocol.model_cards import ModelCard
from shared.protocol.reply import ScoreMethod, Surface
from shared.protocol.sampling import PoolingKind, PoolingParams

MAX_INSTRUCTION_CHARS = 4096
TEMPLATE_CHARS = 300  # about so many are around a pair, where a model is asked


class PairFields(PooledFields, omit_defaults=True):
    """The fields of both routes; None means default."""

    instruction: str | None = None
    use_activation: bool | None = None


OWN: Refused = {
    "rank_fields": non_empty,
    "max_chunks_per_doc": always,
    "max_tokens_per_doc": always,
    "label_token_ids": non_empty,
}


class Pair(NamedTuple):
    """A pair of texts, and the field that the second one came in."""

    query: str
    text: str
    name: str


@dataclass(frozen=True, slots=True)
class PairJobs:
    """Makes jobs: each pair becomes a request of its own."""

    models: ModelDirectory
    encoder: PromptEncoder

    async def job(
        self,
        caller: Caller,
        surface: Surface,
        fields: PairFields,
        pairs: Sequence[Pair],
        *,
        top_n: int = 0,
        returns_texts: bool = False,
    ) -> Job:
        """Raises RequestError."""
        name = required_model(fields.model)
        RANGES["priority"].check("priority", fields.priority)
        _check_number(pairs, is_stream=bool(fields.stream))
        model = await self.models.model(name)
        pooling = _pooling(fields, model.card)
        assert model.card.score is not None, "it is what the pooling was made of"
        prompts = await self._prompts(caller, fields, model, pairs)
        if returns_texts:
            prompts = [
                replace(prompt, echo=pair.text) for prompt, pair in zip(prompts, pairs, strict=True)
            ]
        return Job(
            surface=surface,
            model=model,
            prompts=tuple(prompts),
            sampling=pooled_sampling(fields, pairs[0].name),
            stream=bool(fields.stream),
            options=AnswerOptions(num_kept=top_n),
            pooling=pooling,
            score_method=model.card.score.method,
        )

    async def _prompts(
        self, caller: Caller, fields: PairFields, model: ServedModel, pairs: Sequence[Pair]
    ) -> list[Prompt]:
        """Raises InvalidRequest or ContextLengthExceeded."""
        max_tokens = max_input_tokens(fields, model.card)
        layout = layout_of(model, _instruction(fields))
        is_encoder = model.card.score is not None and model.card.score.is_encoder

        def encode(pairs: Sequence[Pair]) -> list[Prompt]:
            prompts = []
            for query, text, name in pairs:
                if not query or not text:
                    raise InvalidRequest(f"'{name}' or its query is empty", param=name)
                try:
                    prompt = layout.encode(query, text, max_tokens)
                except NoRoom as exc:
                    raise InvalidRequest(
                        f"'truncate_prompt_tokens' leaves {max_tokens} tokens: too few for the "
                        f"query and one token of '{name}'",
                        param="truncate_prompt_tokens",
                    ) from exc
                _check_len(prompt.token_ids, name, model.card)
                second_start = prompt.second_start if is_encoder else 0
                prompts.append(Prompt(prompt.token_ids, second_start=second_start))
            return prompts

        bounded = [await self._bounded(caller, model, pair, max_tokens) for pair in pairs]
        sizes = [len(pair.query) + len(pair.text) + TEMPLATE_CHARS for pair in bounded]
        prompts: list[Prompt] = []
        for group, size in groups(bounded, sizes):
            prompts += await self.encoder.run(caller, size, functools.partial(encode, group))
        return prompts

    async def _bounded(
        self, caller: Caller, model: ServedModel, pair: Pair, max_tokens: int | None
    ) -> Pair:
        """No more of it than can matter. Raises ContextLengthExceeded."""
        query = await self.encoder.head(caller, model, pair.query, pair.name, None)
        text = await self.encoder.head(caller, model, pair.text, pair.name, max_tokens)
        return Pair(query, text, pair.name)


def _check_len(token_ids: Sequence[int], name: str, card: ModelCard) -> None:
    if len(token_ids) > card.max_context_len:
        raise ContextLengthExceeded(
            len(token_ids),
            card.max_context_len,
            None,
            name,
            subject=f"'{name}' with its query",
        )


def _check_number(pairs: Sequence[Pair], *, is_stream: bool) -> None:
    most = MAX_STREAMED_INPUTS if is_stream else MAX_INPUTS
    if len(pairs) > most:
        name = pairs[0].name.partition("[")[0]
        raise InvalidRequest(
            f"'{name}' holds {len(pairs)} texts, at most {most}" + " with 'stream'" * is_stream,
            param=name,
        )


def _instruction(fields: PairFields) -> str | None:
    instruction = fields.instruction
    if instruction is not None and not 1 <= len(instruction) <= MAX_INSTRUCTION_CHARS:
        raise InvalidRequest(
            f"'instruction' has {len(instruction)} characters, must have 1 to "
            f"{MAX_INSTRUCTION_CHARS}",
            param="instruction",
        )
    return instruction


def _pooling(fields: PairFields, card: ModelCard) -> PoolingParams:
    """Raises InvalidRequest."""
    score = card.score
    if score is None:
        raise InvalidRequest(
            f"The model '{card.name}' scores nothing: it is no classifier with one label, nor a "
            "decoder with a chat template and single tokens for 'yes' and 'no'.",
            param="model",
        )
    is_probability = score.is_probability
    if fields.use_activation is not None:
        is_probability = fields.use_activation
    if score.method is ScoreMethod.YES_NO and not is_probability:
        raise InvalidRequest(
            f"'use_activation' is false, but '{card.name}' scores by the probability of 'yes' "
            "against 'no': there is no other score",
            param="use_activation",
        )
    kind = PoolingKind.ENCODED if score.is_encoder else PoolingKind.LOGITS
    return PoolingParams(kind, normalize=is_probability, token_ids=score.answer_ids)
