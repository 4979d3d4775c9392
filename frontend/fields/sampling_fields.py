"""The sampling fields that all request bodies share: checked, and resolved to wire parameters."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec
from tokenizers import Tokenizer

from frontend.fields.cache_fields import CacheFields, checked_salt, keep_of, session_of
from frontend.fields.field_ranges import RANGES, Range
from frontend.fields.grammar_fields import WantedGrammar, resolve_grammar
from frontend.fields.logprob_fields import LogprobOptions
from frontend.fields.processor_fields import checked_processors
from frontend.fields.sampler_order import in_order
from frontend.fields.token_rules import (
    bad_sequences,
    check_token_ids,
    checked_allowed_ids,
    checked_bias,
)
from shared.errors import ContextLengthExceeded, InvalidRequest
from shared.protocol.model_cards import ModelCard
from shared.protocol.reply import TextParams
from shared.protocol.request import KeepPrefix
from shared.protocol.sampling import Grammar, SamplingParams, SequenceBreaker

MAX_STOP = 16
MAX_STOP_CHARS = 1024
_SEED_MASK = (1 << 64) - 1
PROMPT_TAIL_LEN = 6  # the detokenizer's left context
_SAME_ON_THE_WIRE = (
    "typical_p", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
)  # fmt: skip
DEFAULT_REPEAT_LAST_N = 64  # of `repeat_penalty`, as in llama.cpp
_BEAM_TOKEN_BYTES = 12  # its id and, on the average at most, its text

# Where neither the request nor the model says otherwise.
SAMPLING_DEFAULTS: Mapping[str, float] = MappingProxyType(
    {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
)


class SamplingFields(CacheFields, omit_defaults=True):
    """Fields of a body that say how to choose tokens and when to stop; None means default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    seed: int | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    bad_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    samplers: list[str] | str | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    logits_processors: list[Any] | None = None


_RANGED = sorted(RANGES.keys() & set(SamplingFields.__struct_fields__) - {"max_tokens"})
_ranged_values = attrgetter(*_RANGED)
_values_on_the_wire = attrgetter(*_SAME_ON_THE_WIRE)
_chosen_values = attrgetter(*SAMPLING_DEFAULTS)
_defaults_of = attrgetter(*(f"default_{name}" for name in SAMPLING_DEFAULTS))  # of a model card


class Sampling(msgspec.Struct, frozen=True):
    """Checked sampling fields of a request; `max_tokens` still depends on the prompt."""

    params: SamplingParams  # max_tokens is a placeholder until `for_prompt`
    text: TextParams
    max_tokens: int | None  # None: as many as the context has room for
    max_tokens_is_default: bool
    max_tokens_param: str
    prompt_param: str
    n: int
    priority: int
    cache_salt: str  # "" is none
    grammar_param: str = ""  # the field that gave `params.grammar`
    logprobs: LogprobOptions = LogprobOptions()
    keep: KeepPrefix | None = None
    session: str = ""  # "" is none

    def for_prompt(
        self, prompt_ids: list[int], card: ModelCard, choice_idx: int, max_logprob_bytes: int
    ) -> tuple[SamplingParams, TextParams]:
        """Parameters of one choice. Raises ContextLengthExceeded or InvalidRequest."""
        beam = self.params.beam
        if beam is not None:
            max_output: int | None = max_logprob_bytes // (_BEAM_TOKEN_BYTES * beam.num_kept)
        else:
            max_output = self.logprobs.max_output_tokens(len(prompt_ids), max_logprob_bytes)
        return (
            msgspec.structs.replace(
                self.params,
                max_tokens=self._max_tokens(len(prompt_ids), card.max_context_len, max_output),
                seed=(self.params.seed + choice_idx) & _SEED_MASK,
            ),
            msgspec.structs.replace(self.text, prompt_tail=tuple(prompt_ids[-PROMPT_TAIL_LEN:])),
        )

    def _max_tokens(
        self, num_prompt_tokens: int, max_context_len: int, max_output: int | None
    ) -> int:
        """`max_output`: for how many tokens one message has room; None: any number."""
        max_tokens = self._max_tokens_in_context(num_prompt_tokens, max_context_len)
        if max_output is None or max_tokens <= max_output:
            return max_tokens
        if self.max_tokens_is_default and max_output:
            return max_output
        beam = self.params.beam
        what = f"'{self.logprobs.param}' of {self.logprobs.num_top} alternatives"
        if beam is not None:
            what = f"'use_beam_search' and {beam.num_kept} choices"
        raise InvalidRequest(
            f"'{self.max_tokens_param}' is {max_tokens}: with {what} there is room for "
            f"{max_output} tokens",
            param=self.max_tokens_param,
        )

    def _max_tokens_in_context(self, num_prompt_tokens: int, max_context_len: int) -> int:
        room = max_context_len - num_prompt_tokens
        if room < (0 if self.max_tokens == 0 else 1):
            raise ContextLengthExceeded(num_prompt_tokens, max_context_len, None, self.prompt_param)
        if self.max_tokens is None:
            return room
        if self.max_tokens > room:
            if self.max_tokens_is_default:
                return room
            raise ContextLengthExceeded(
                num_prompt_tokens, max_context_len, self.max_tokens, self.max_tokens_param
            )
        return self.max_tokens


def sampling_defaults(card: ModelCard, *, use_model_defaults: bool) -> dict[str, float]:
    """What a request gets for the fields that it leaves open."""
    if not use_model_defaults:
        return dict(SAMPLING_DEFAULTS)
    of_model = zip(SAMPLING_DEFAULTS.items(), _defaults_of(card), strict=True)
    return {name: usual if own is None else own for (name, usual), own in of_model}


def resolve_sampling(
    fields: SamplingFields,
    card: ModelCard,
    *,
    default_max_tokens: int | None,
    prompt_param: str,
    max_tokens_param: str = "max_tokens",
    use_model_defaults: bool = True,
    tokenizer: Tokenizer,
    logprobs: LogprobOptions,
    breakers: tuple[SequenceBreaker, ...] = (),
    may_be_empty: bool = False,
    text_format: WantedGrammar | None = None,
) -> Sampling:
    """Check every field and fill in defaults. Raises InvalidRequest.

    `breakers`: of DRY. `may_be_empty`: the answer makes sense without output tokens.
    `text_format`: of a body that says it elsewhere than in these fields.
    """
    max_tokens = default_max_tokens if fields.max_tokens is None else fields.max_tokens
    may_be_empty = may_be_empty or logprobs.num_scored_top is not None
    _check_ranges(fields, max_tokens, max_tokens_param, may_be_empty=may_be_empty)
    wanted = text_format or resolve_grammar(fields, tokenizer)
    chosen = sampling_defaults(card, use_model_defaults=use_model_defaults)
    params = _params(
        fields,
        card,
        chosen,
        tokenizer,
        logprobs,
        max_tokens=max_tokens or 0,
        grammar=None if wanted is None else wanted.grammar,
        breakers=breakers,
    )
    text = TextParams(
        stop=_stop_strings(fields.stop),
        include_stop=bool(fields.include_stop_str_in_output),
        min_tokens=params.min_tokens,
        skip_special_tokens=fields.skip_special_tokens is not False,
        shown_ids=() if wanted is None else wanted.mark_ids,
    )
    return Sampling(
        params=params,
        text=text,
        max_tokens=max_tokens,
        max_tokens_is_default=fields.max_tokens is None,
        max_tokens_param=max_tokens_param,
        prompt_param=prompt_param,
        n=1 if fields.n is None else fields.n,
        priority=fields.priority or 0,
        cache_salt=checked_salt(fields.cache_salt),
        keep=keep_of(fields),
        session=session_of(fields),
        grammar_param="" if wanted is None else wanted.param,
        logprobs=logprobs,
    )


def _check_ranges(
    fields: SamplingFields, max_tokens: int | None, max_tokens_param: str, *, may_be_empty: bool
) -> None:
    """Raises InvalidRequest."""
    Range(low=0 if may_be_empty else 1).check(max_tokens_param, fields.max_tokens)
    for name, value in zip(_RANGED, _ranged_values(fields), strict=True):
        if value is not None:
            RANGES[name].check(name, value)
    if max_tokens is not None and (fields.min_tokens or 0) > max_tokens:
        raise InvalidRequest(
            f"'min_tokens' is {fields.min_tokens}, above '{max_tokens_param}', {max_tokens}",
            param="min_tokens",
        )


def _params(
    fields: SamplingFields,
    card: ModelCard,
    defaults: dict[str, float],
    tokenizer: Tokenizer,
    logprobs: LogprobOptions,
    *,
    max_tokens: int,
    grammar: Grammar | None,
    breakers: tuple[SequenceBreaker, ...],
) -> SamplingParams:
    """`defaults`: of the fields that are left open. Raises InvalidRequest."""
    chosen = {
        name: usual if value is None else value
        for (name, usual), value in zip(defaults.items(), _chosen_values(fields), strict=True)
    }
    stop_token_ids = tuple(fields.stop_token_ids or ())
    check_token_ids("stop_token_ids", stop_token_ids, card.vocab_size)
    params = SamplingParams(
        max_tokens=max_tokens,
        seed=secrets.randbits(63) if fields.seed is None else fields.seed & _SEED_MASK,
        temperature=float(chosen["temperature"]),
        top_p=float(chosen["top_p"]),
        top_k=max(0, int(chosen["top_k"])),
        min_p=float(chosen["min_p"]),
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=float(chosen["repetition_penalty"]),
        min_tokens=fields.min_tokens or 0,
        ignore_eos=bool(fields.ignore_eos),
        stop_token_ids=stop_token_ids,
        grammar=grammar,
        logit_bias=checked_bias(fields.logit_bias, card.vocab_size),
        allowed_token_ids=checked_allowed_ids(fields.allowed_token_ids, card.vocab_size),
        bad_words=bad_sequences(fields.bad_words, fields.bad_token_ids, tokenizer, card.vocab_size),
        logprobs=logprobs.num_top,
        prompt_logprobs=logprobs.num_scored_top,
        logprob_ids=logprobs.token_ids,
        logits_processors=checked_processors(fields.logits_processors, card.logits_processors),
        dry_breakers=breakers,
        **_same_on_the_wire(fields),
    )
    params = _looking_back(params, fields)
    return params if fields.samplers is None else in_order(params, fields.samplers)


def _looking_back(params: SamplingParams, fields: SamplingFields) -> SamplingParams:
    """The parameters with llama.cpp's penalties, which count the last tokens.

    Raises InvalidRequest.
    """
    last_n = fields.repeat_last_n
    if fields.repeat_penalty is not None:
        if fields.repetition_penalty not in (None, fields.repeat_penalty):
            raise InvalidRequest(
                f"'repeat_penalty' is {fields.repeat_penalty}, and 'repetition_penalty' is "
                f"{fields.repetition_penalty}: they exclude each other",
                param="repeat_penalty",
            )
        params = msgspec.structs.replace(params, repetition_penalty=fields.repeat_penalty)
        last_n = DEFAULT_REPEAT_LAST_N if last_n is None else last_n
    if last_n == 0:
        off = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        return msgspec.structs.replace(params, **off)
    counts_output = params.presence_penalty != 0 or params.frequency_penalty != 0
    is_usual = last_n == -1 and not counts_output
    if is_usual or (params.repetition_penalty == 1 and not counts_output):
        return params
    return msgspec.structs.replace(params, penalty_last_n=last_n)


def _same_on_the_wire(fields: SamplingFields) -> dict[str, Any]:
    """The given ones among the fields that have the same name and meaning there."""
    given = zip(_SAME_ON_THE_WIRE, _values_on_the_wire(fields), strict=True)
    return {name: value for name, value in given if value is not None}


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP:
        raise InvalidRequest(f"'stop' has {len(strings)} strings, at most {MAX_STOP}", param="stop")
    for string in strings:
        if not string:
            raise InvalidRequest("'stop' holds an empty string", param="stop")
        if len(string) > MAX_STOP_CHARS:
            raise InvalidRequest(
                f"'stop' holds a string of {len(string)} characters, at most {MAX_STOP_CHARS}",
                param="stop",
            )
    return strings
