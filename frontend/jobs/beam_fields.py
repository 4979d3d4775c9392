"""Fields of a beam search: what it takes, and what it has no use for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from frontend.fields.field_ranges import RANGES
from frontend.fields.sampling_fields import Sampling
from frontend.fields.thinking_fields import BUDGET_NAMES
from frontend.jobs.openai_fields import OpenAIFields
from shared.errors import InvalidRequest
from shared.protocol.sampling import BeamParams, EarlyStopping

_OWN = ("beam_width", "length_penalty", "early_stopping")
# A search ranks whole outputs by what the model itself thinks of them, and tells them at their
# end. By field, the values beside null that ask for nothing else.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "stream": (False,),
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "dry_multiplier": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "samplers": (),
    "min_tokens": (0,),
    "stop": ([], ""),
    "logit_bias": ({},),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "bad_token_ids": ([],),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "logits_processors": ([],),
    "tools": ([],),
    **dict.fromkeys(BUDGET_NAMES, (-1,)),
    "custom_params": ({},),
}


def beam_params(fields: OpenAIFields, best_of: int | None = None) -> BeamParams | None:
    """None without `use_beam_search`. Raises InvalidRequest.

    As wide as `beam_width`, else `best_of`, else `n`, which is how many outputs are told.
    """
    if not fields.use_beam_search:
        for name in _OWN:
            value = getattr(fields, name)
            if value is not None and value is not False and value != 1:
                raise InvalidRequest(
                    f"'{name}' is {value!r}, and 'use_beam_search' is not true", param=name
                )
        return None
    for name, neutral in _NEUTRAL.items():
        value = getattr(fields, name, None)
        if value is not None and not _is_one_of(value, neutral):
            raise InvalidRequest(
                f"'{name}' is {value!r}, and 'use_beam_search' is true: they exclude each other",
                param=name,
            )
    if fields.max_tokens == 0:
        raise InvalidRequest("'max_tokens' is 0, must be at least 1", param="max_tokens")
    width_name = "beam_width" if fields.beam_width is not None else "best_of"
    given_width = fields.beam_width if fields.beam_width is not None else best_of
    for name, value in (("n", fields.n), (width_name, given_width)):
        RANGES[name].check(name, value)
    RANGES["length_penalty"].check("length_penalty", fields.length_penalty)
    num_kept = 1 if fields.n is None else fields.n
    width = num_kept if given_width is None else given_width
    if width < num_kept:
        raise InvalidRequest(
            f"'{width_name}' is {width}, must be at least 'n', {num_kept}", param=width_name
        )
    return BeamParams(
        width,
        num_kept,
        1.0 if fields.length_penalty is None else fields.length_penalty,
        _EARLY[fields.early_stopping or False],
    )


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    """False is not 0 here: `logprobs` of 0 asks for some."""
    return any(value == each and (value is False) == (each is False) for each in neutral)


_EARLY: Mapping[bool | str, EarlyStopping] = {
    True: EarlyStopping.NOW,
    False: EarlyStopping.LIKELY,
    "never": EarlyStopping.CERTAIN,
}


def with_beams(sampling: Sampling, beam: BeamParams | None) -> Sampling:
    """One request makes all choices, whatever a model's defaults say. Raises InvalidRequest."""
    if beam is None:
        return sampling
    if sampling.params.grammar is not None:
        param = sampling.grammar_param
        raise InvalidRequest(
            f"'{param}' and 'use_beam_search' exclude each other",
            param=param,
        )
    params = msgspec.structs.replace(
        sampling.params,
        beam=beam,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
    )
    return msgspec.structs.replace(sampling, params=params, n=1)
