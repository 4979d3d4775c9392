"""What a request asks of the engine."""

from __future__ import annotations

import enum

import msgspec

# Of JSON. Any amount is valid, but a model that likes spaces would never get out of it.
DEFAULT_WHITESPACE = r"( |\n[ \t]{0,40})"


class GrammarKind(enum.StrEnum):
    """What a grammar's text is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"  # Rust's syntax; the whole output matches
    CHOICE = "choice"  # a JSON list of strings
    EBNF = "ebnf"  # GBNF, as in llama.cpp, or Lark
    LARK = "lark"  # llguidance's dialect, written by a frontend


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the output must be. A matcher is rebuilt from it and the output tokens alone."""

    kind: GrammarKind
    text: str
    engine: str  # library and version that checked it: another may read it differently
    whitespace: str | None = None  # of JSON: a regex for the space between tokens, "" for none


class EarlyStopping(enum.StrEnum):
    """When a beam search that has found as many outputs as it is wide is over."""

    NOW = "now"  # at once
    LIKELY = "likely"  # when no running beam is better than the worst of them by its present length
    CERTAIN = "certain"  # when none can become better than the worst of them


class BeamParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asks for a beam search in place of sampling. Validated by the frontend."""

    width: int  # beams at a time
    num_kept: int  # outputs that are told, the best first
    length_penalty: float = 1.0  # a score is the sum of logprobs / length ** length_penalty
    early_stopping: EarlyStopping = EarlyStopping.LIKELY


# What narrows a row of logits, by llama.cpp's names, in the usual order.
SAMPLER_ORDER = ("temperature", "min_p", "top_k", "top_p", "typ_p", "xtc")


class SequenceBreaker(msgspec.Struct, frozen=True, array_like=True):
    """Token sequences that end what DRY takes for a repetition: one of the heads, then the tail."""

    head_ids: bytes  # little-endian uint32
    tail: tuple[int, ...] = ()


class ThinkingBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many tokens of the output may be reasoning, and what tells these apart."""

    max_tokens: int  # behind so many the closing mark is forced; the marks do not count
    begin_ids: tuple[int, ...]  # the opening mark, as the model writes it; (): it has begun, once
    end_id: int  # the closing mark
    is_open: bool = False  # reasoning has begun in the prompt
    repeats: bool = False  # it may begin again behind its end: all of it counts


class ProcessorCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A logits processor of the operator's file, and what it is told."""

    name: str
    params: str = "{}"  # an object, in JSON


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to choose tokens, and when the engine stops. Validated by the frontend."""

    max_tokens: int  # output tokens, resolved: always within the context
    seed: int  # 64-bit unsigned, always filled in: a resumed request draws the same numbers
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, each once, and what to add
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that never come out whole
    logprobs: int | None = None  # alternatives told with each output token; None: no logprobs
    prompt_logprobs: int | None = None  # the same of the prompt's tokens
    grammar: Grammar | None = None
    beam: BeamParams | None = None  # set: the result is in the finish, and no token is made
    # From feature level 2 on:
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0  # 0: no DRY
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # so many tokens are looked at; -1: all
    dry_breakers: tuple[SequenceBreaker, ...] = ()
    # The other penalties count so many of the last tokens, prompt included; -1: all; None:
    # repetition counts all, the other two the output.
    penalty_last_n: int | None = None
    samplers: tuple[str, ...] = ()  # of `SAMPLER_ORDER`, those that act in another order; (): usual
    # From feature level 3 on:
    thinking: ThinkingBudget | None = None
    # From feature level 4 on:
    logprob_ids: tuple[int, ...] = ()  # told with all logprobs, behind the likeliest
    logits_processors: tuple[ProcessorCall, ...] = ()
    hidden_states: bool = False  # told with the finish, of all tokens but the last

    @property
    def is_narrowed(self) -> bool:
        """Whether samplers narrow the choice in a way that no threshold can say."""
        narrows = self.typical_p < 1 or self.xtc_probability > 0 or self.dynatemp_range > 0
        return narrows or bool(self.samplers)

    @property
    def needed_level(self) -> int:
        """Who knows less would draw other tokens, or tell less of them."""
        if self.logprob_ids or self.logits_processors or self.hidden_states:
            return 4
        if self.thinking is not None:
            return 3
        looks_back = self.dry_multiplier > 0 or self.penalty_last_n is not None
        return 2 if self.is_narrowed or looks_back else 1


class PoolingKind(enum.StrEnum):
    """How the hidden states of a prompt become one vector."""

    LAST = "last"  # the last token's
    MEAN = "mean"  # the mean of all tokens'
    LOGITS = "logits"  # no hidden states: what the model's head makes of the last token's
    ENCODED = "encoded"  # what the head of an encoder makes of all tokens, which see each other


class PoolingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asks for a vector of the prompt in place of output tokens. Validated by the frontend."""

    kind: PoolingKind
    # An embedding to length 1, after it was cut to `dimensions`; logits to probabilities, by a
    # sigmoid of a single one and by a softmax of several.
    normalize: bool = True
    dimensions: int | None = None  # of an embedding: the first so many; None: all
    token_ids: tuple[int, ...] = ()  # the logits that are told, in this order; empty: all
    second_start: int = 0  # of an encoder's pair: index of the first token of kind 1; 0: none
    are_independent: bool = False  # several logits become probabilities by a sigmoid of each
    # From feature level 4 on: not one vector, but one of each token; of LAST and LOGITS alone.
    each_token: bool = False
