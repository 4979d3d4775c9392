"""What a request's answer looks like: kept with the request, for whoever answers later."""

from __future__ import annotations

import enum

import msgspec

from shared.protocol.hearing_card import TranscriptRule
from shared.protocol.trace_context import TraceContext

CLASSIFY_LEVEL = 4  # of vectors that name labels, or what they are, and of independent labels
START_LEVEL = 4  # the feature level of logprobs that begin within a prompt


class TextParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that the visible text of a token sequence depends on, besides the tokens."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False  # keep the stop string in the text
    min_tokens: int = 0  # a stop string ending within the first min_tokens tokens does not count
    skip_special_tokens: bool = True
    shown_ids: tuple[int, ...] = ()  # special tokens that are text all the same
    prompt_tail: tuple[int, ...] = ()  # last prompt ids: the decoder's left context


class Surface(enum.StrEnum):
    """Which API a request came through: a resumed stream speaks it again."""

    CHAT = "chat.completions"
    COMPLETIONS = "completions"
    GENERATE = "generate"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    SCORE = "score"
    RERANK = "rerank"
    MESSAGES = "messages"
    OLLAMA_CHAT = "api.chat"
    OLLAMA_GENERATE = "api.generate"
    OLLAMA_EMBED = "api.embed"
    INFILL = "infill"
    CHAT_BATCH = "chat.completions.batch"  # of bodies alone: what they ask for are chats
    FORK = "fork"  # of bodies alone, too: a fork answers as its source does
    GENERATE_SO_FAR = "generate.so_far"  # its events repeat what came before
    CLASSIFY = "classify"
    POOLING = "pooling"
    TRANSCRIPTION = "audio.transcriptions"
    TRANSLATION = "audio.translations"


class ParamKind(enum.StrEnum):
    """What a parameter of a function takes, beside text alone."""

    JSON = "json"
    TEXT_OR_NULL = "text-or-null"


class AnswerFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the visible text of a chat answer holds besides content. For frontends alone."""

    tools: str | None = None  # name of the parser of calls
    tool_names: tuple[str, ...] = ()  # JSON without a mark is a call when it names one of them
    reasoning: str | None = None  # name of the parser
    begins_in_reasoning: bool = False  # the prompt ended with the opening mark
    hides_reasoning: bool = False  # its client wants none of it
    param_kinds: dict[str, dict[str, ParamKind]] = {}  # by tool, where calls are not JSON
    reasoning_end_id: int | None = None  # the closing mark, where that is a token
    # A grammar lets nothing but calls through. Frontends that do not know it tell the head of a
    # call that was cut as content.
    is_calls_alone: bool = False


class TranscriptFormat(enum.StrEnum):
    """What a transcript is told in."""

    JSON = "json"
    TEXT = "text"
    SRT = "srt"
    VERBOSE_JSON = "verbose_json"
    VTT = "vtt"

    @property
    def is_json(self) -> bool:
        return self in (TranscriptFormat.JSON, TranscriptFormat.VERBOSE_JSON)


class TranscriptReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the tokens of a transcript become an answer."""

    format: TranscriptFormat
    rule: TranscriptRule
    seconds: float  # of audio
    temperature: float
    language: str = ""  # "": the first token tells it
    languages: dict[str, int] = {}  # by code, where it does


class EncodingFormat(enum.StrEnum):
    """How an embedding stands in JSON."""

    FLOAT = "float"  # a list of numbers
    BASE64 = "base64"  # of little-endian float32


class ScoreMethod(enum.StrEnum):
    """What says how well two texts fit together."""

    CLASSIFIER = "classifier"  # the one label of a checkpoint that was trained for it
    YES_NO = "yes_no"  # of a decoder that was asked, the probability of "yes" against "no"


class Payer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who pays for a request, and what its client wants to find on the bill."""

    tenant: str = ""  # id
    key: str = ""  # the first hex digits of its SHA-256
    metadata: dict[str, str] = {}


class SealedReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reply data on the wire: where the text goes, and what others than frontends decide by.

    `rendering` has the other fields of `ReplyParams`, for frontends (sealed_replies.py).
    """

    subject: str  # chunks are published here
    model: str  # name the client used
    created: int  # unix seconds
    num_prompt_tokens: int
    group_id: str  # of n choices; the rid of the first of them
    choice_idx: int = 0
    num_choices: int = 1
    num_prompts: int = 1  # of a list of prompts: choices of one prompt are adjacent
    deadline_s: float = 0.0  # budget from `created` on, for whoever serves the stream; 0: unknown
    owner: str = ""  # hash of the tenant's id: nobody else may resume or abort it
    frontend_id: str = ""  # whose death orphans the request; "" for a detached one
    kept_at: int = 0  # sequence of its record in RESPONSES, which the result follows; 0: none
    is_whole: bool = False  # its client takes it in one piece: no text before the finish
    is_shared: bool = False  # it has an idempotency key: several clients may read it
    job_class: str = "interactive"
    has_images: bool = False  # or embeddings: so that it has an object, whatever its length
    trace: TraceContext | None = None  # what everybody who works on it makes spans of
    payer: Payer | None = None
    rendering: bytes = b""


class ReplyParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the text goes, and all that a frontend needs to resume the stream of another.

    On the wire it is sealed: what others than frontends decide by is also a field of `SealedReply`.
    """

    subject: str  # chunks are published here
    surface: Surface
    model: str  # name the client used
    created: int  # unix seconds
    num_prompt_tokens: int
    group_id: str  # of n choices; the rid of the first of them
    choice_idx: int = 0
    num_choices: int = 1
    num_prompts: int = 1  # of a list of prompts: choices of one prompt are adjacent
    deadline_s: float = 0.0  # budget from `created` on, for whoever serves the stream; 0: unknown
    include_usage: bool = False
    continuous_usage: bool = False  # with every event
    tells_token_ids: bool = False  # of prompt and output
    prompt_ids: bytes = b""  # little-endian uint32, where they are told
    tokens_as_ids: bool = False  # logprobs name tokens by their ids
    num_kept: int = 0  # choices of a prompt, or ranked texts, that are shown, best first; 0: all
    hides_logprobs: bool = False  # they are there to rank choices by
    num_beams: int = 0  # choices that one request makes of its prompt, by beam search; 0: none
    echo: str = ""  # of the prompt, what precedes the output, or the ranked text
    num_top: int | None = None  # alternatives told with each output token; None: no logprobs
    num_prompt_top: int | None = None  # the same of the prompt
    echo_logprobs: bool = False  # the prompt's are shown before the output's
    owner: str = ""  # hash of the tenant's id: nobody else may resume or abort it
    frontend_id: str = ""  # whose death orphans the request; "" for a detached one
    kept_at: int = 0  # sequence of its record in RESPONSES, which the result follows; 0: none
    encoding_format: EncodingFormat = EncodingFormat.FLOAT  # of embeddings
    score_method: ScoreMethod | None = None  # of scores
    is_whole: bool = False  # its client takes it in one piece: no text before the finish
    is_shared: bool = False  # it has an idempotency key: several clients may read it
    job_class: str = "interactive"
    queue_timeout_s: float = 0.0  # from `created` until the first claim; 0: as long as the deadline
    answer: AnswerFormat | None = None  # of a chat; None: the text is the content
    has_images: bool = False  # or embeddings: so that it has an object, whatever its length
    trace: TraceContext | None = None  # what everybody who works on it makes spans of
    payer: Payer | None = None
    base_model: str = ""  # where `model` names a LoRA adapter: the model that it is for
    is_list: bool = False  # its client sent a list of prompts, if only of one
    rid: str = ""  # what the client calls it, where its answer repeats that
    grace_s: float = 0.0  # it runs on so long without a client, unless a later client says another
    # Those that end it, where tokens of its own do so too; None: no other token does.
    eos_token_ids: tuple[int, ...] | None = None
    num_logprob_ids: int = 0  # alternatives behind the likeliest, which the request names
    prompt_start: int = 0  # logprobs of the prompt are told from this token on
    is_by_token: bool = False  # a result that is no text: it is a vector of each token
    transcript: TranscriptReply | None = None
    num_audio_tokens: int = 0  # of the prompt

    @property
    def num_alternatives(self) -> int | None:
        """In each record of an output token; None: there are none."""
        return None if self.num_top is None else self.num_top + self.num_logprob_ids

    @property
    def served_model(self) -> str:
        """Name of the model whose queue it is in."""
        return self.base_model or self.model
