"""The messages that cross a process border. docs/protocol.md says what they promise."""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec

PROTOCOL_VERSION = 1

Place = Annotated[int, msgspec.Meta(ge=0)]  # a stream sequence, or an index
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]  # what four bytes hold


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"  # end-of-turn token, stop token or stop string
    LENGTH = "length"  # max_tokens or the context length
    CANCEL = "cancel"  # ended by its client, or because the client is gone
    DEADLINE = "deadline"  # its time budget ran out
    QUEUE_TIMEOUT = "queue_timeout"  # no worker claimed it in time
    POISON = "poison"  # it crashed too many workers
    WEIGHTS_REPLACED = "weights_replaced"  # no worker has the weights that it began with
    ADAPTER_UNLOADED = "adapter_unloaded"  # its LoRA adapter is not one of the model's any more
    ERROR = "error"  # the engine failed it, or the log is damaged


class Beam(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One output that a beam search has found."""

    token_ids: bytes  # little-endian uint32
    cumulative_logprob: float  # of all its tokens
    reason: FinishReason  # STOP or LENGTH
    text: str = ""  # the worker fills it in


class Finish(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """How a request ended: decided once, in the log."""

    reason: FinishReason
    matched: str | int | None = None  # the stop string or stop token that ended it
    message: str | None = None  # of an ERROR
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    embedding: bytes = b""  # the vector of a request with `pooling`: little-endian float32
    beams: tuple[Beam, ...] = ()  # the result of a request with `beam`, the best first

    @property
    def num_beam_tokens(self) -> int:
        """Of all the outputs that a beam search has found."""
        return sum(len(beam.token_ids) // 4 for beam in self.beams)

    @property
    def num_result_bytes(self) -> int:
        """What a result that is no token takes in a message, about."""
        num_bytes = len(self.embedding)
        for beam in self.beams:
            num_bytes += 32 + len(beam.token_ids) + len(beam.text.encode())
        return num_bytes


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


class ToolStyle(enum.StrEnum):
    """How a model writes calls of tools into its text."""

    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": {...}}</tool_call>, also Qwen
    LLAMA3 = "llama3"  # {"name": ..., "parameters": {...}}, also behind <|python_tag|>
    MISTRAL = "mistral"  # [TOOL_CALLS] [{"name": ..., "arguments": {...}}]
    MISTRAL_ARGS = "mistral-args"  # [TOOL_CALLS]name[ARGS]{...}
    QWEN3_CODER = "qwen3-coder"  # <tool_call><function=name><parameter=a>...
    JSON = "json"  # the whole text is {"name": ..., "arguments": {...}}, or a list of such


class ParamKind(enum.StrEnum):
    """What a parameter of a function takes, beside text alone."""

    JSON = "json"
    TEXT_OR_NULL = "text-or-null"


class ReasoningStyle(enum.StrEnum):
    """Between which marks a model thinks before it answers."""

    THINK = "think"  # <think> and </think>
    MISTRAL = "mistral"  # [THINK] and [/THINK]


class AnswerFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the visible text of a chat answer holds besides content."""

    tools: ToolStyle | None = None
    tool_names: tuple[str, ...] = ()  # JSON without a mark is a call when it names one of them
    reasoning: ReasoningStyle | None = None
    begins_in_reasoning: bool = False  # the prompt ended with the opening mark
    hides_reasoning: bool = False  # its client wants none of it
    param_kinds: dict[str, dict[str, ParamKind]] = {}  # by tool, where calls are not JSON
    reasoning_end_id: int | None = None  # the closing mark, where that is a token


class EncodingFormat(enum.StrEnum):
    """How an embedding stands in JSON."""

    FLOAT = "float"  # a list of numbers
    BASE64 = "base64"  # of little-endian float32


class ScoreMethod(enum.StrEnum):
    """What says how well two texts fit together."""

    CLASSIFIER = "classifier"  # the one label of a checkpoint that was trained for it
    YES_NO = "yes_no"  # of a decoder that was asked, the probability of "yes" against "no"


class ReplyParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the text goes, and all that a frontend needs to resume the stream of another."""

    subject: str  # chunks are published here
    surface: Surface
    model: str  # name the client used
    created: int  # unix seconds
    num_prompt_tokens: int
    group_id: str  # of n choices; equals the rid when n is 1
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
    owner: str = ""  # hash of the API key: nobody else may resume or abort it
    frontend_id: str = ""  # whose death orphans the request; "" for a detached one
    kept_at: int = 0  # sequence of its record in RESPONSES, which the result follows; 0: none
    encoding_format: EncodingFormat = EncodingFormat.FLOAT  # of embeddings
    score_method: ScoreMethod | None = None  # of scores
    is_shared: bool = False  # it has an idempotency key: several clients may read it
    job_class: str = "interactive"
    queue_timeout_s: float = 0.0  # from `created` until the first claim; 0: as long as the deadline
    answer: AnswerFormat | None = None  # of a chat; None: the text is the content
    has_images: bool = False  # so that it has an object, whatever its length
    base_model: str = ""  # where `model` names a LoRA adapter: the model that it is for

    @property
    def served_model(self) -> str:
        """Name of the model whose queue it is in."""
        return self.base_model or self.model


class ImageSpan(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of a prompt that stand for an image; its pixels are in the prompt's object."""

    start: Place
    num_tokens: Place
    digest: bytes  # of the pixels: what the prefix cache knows it by


class KeepPrefix(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that runs the request evicts the beginning of its prompt after all others."""

    seconds: float  # from the end of the run on
    num_tokens: int = 0  # so many of the prompt; 0: all


class GenerateRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tokenized prompt in the queue: `jf.req.<pool>.<class>`."""

    rid: str  # 32 hex digits, made by the frontend
    pool: str
    model: str
    revision: str
    tokenizer_hash: str
    sampling: SamplingParams
    text: TextParams
    reply: ReplyParams
    deadline_s: float  # budget from the moment it was queued
    prompt_ids: bytes = b""  # little-endian uint32; empty when prompt_object is set
    prompt_object: str = ""  # object store name of a prompt above the inline limit, or with images
    images: tuple[ImageSpan, ...] = ()  # in their order
    priority: int = 0  # lower is earlier, as in vLLM
    traceparent: str = ""
    cache_salt: str = ""  # only requests with the same one share cached prefixes
    adapter: str = ""  # revision of the LoRA adapter on top of the weights
    pooling: PoolingParams | None = None  # set: the result is a vector, and no token
    keep: KeepPrefix | None = None
    session: str = ""  # opaque: what goes on where others of the same owner with it have ended


class Claim(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="claim"):
    """A worker takes a request. The sequence at which it is stored is the epoch."""

    prev: int  # the CAS value: sequence of the ownership record before, 0 for the first
    worker: str  # incarnation, never reused
    nonce: str  # one a delivery, kept over retries
    request_seq: int  # of the message in REQUESTS: tells the canonical one from duplicates
    ack_subject: str  # whoever sees the worker dead may nak here
    tokenizer_hash: str
    text: TextParams
    reply: ReplyParams
    pool: str
    after_death: bool = False  # the heartbeat of the claim's worker before was absent by now
    is_alone: bool = False  # the worker runs nothing else until this one has made progress
    revision: str = ""  # of the weights that this worker computes with; "": the request's


class Release(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="release"):
    """A worker hands a request back."""

    prev: int
    worker: str
    progressed: bool = False  # whether this epoch logged a token beyond its prefix
    crashed: bool = False  # released because the engine died under it
    pinned: str = ""  # set: the revision that its tokens were made with, which is not the worker's


class End(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="end"):
    """Somebody other than the engine ends a request."""

    prev: int
    reason: FinishReason
    by: str
    message: str | None = None
    reply: ReplyParams | None = None  # set when no claim may have told it


OwnershipRecord: TypeAlias = Claim | Release | End


class TokenEntry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """New ids of one request."""

    rid: str
    epoch: Place  # stream sequence of the claim under which these ids were made
    position: Place  # index of the first id among the request's output tokens
    token_ids: list[TokenId]
    finish: Finish | None = None  # set once, on the last entry
    logprobs: bytes = b""  # a record of `shared.logprobs` for each id, if the request asks
    prompt_logprobs: bytes = b""  # at position 0: of the whole prompt, if the request asks


class TokenFrame(msgspec.Struct, frozen=True, array_like=True):
    """New ids of one engine step, all requests of one partition: `jf.tok.<p>.<worker>`."""

    worker: str
    number: int  # counts this worker's frames in this partition, from 1; a resend keeps it
    entries: list[TokenEntry]


class TextChunk(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """New text of one request."""

    rid: str
    position: int  # output tokens that this text, and all before it, comes from
    offset: int  # code points of text before this chunk
    text: str
    token_ids: list[int] = []  # the new ids, ending at `position`
    finish: Finish | None = None
    logprobs: bytes = b""  # a record for each of `token_ids`, if the request asks
    prompt_logprobs: bytes = b""  # with the first ids, if the request asks


class TextFrame(msgspec.Struct, frozen=True, array_like=True):
    """New text of one log frame, all requests of one reply subject."""

    detok: str
    chunks: list[TextChunk]


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """The finished result: `jf.done.<rid>`, written once, kept for the resume window."""

    rid: str
    token_ids: bytes  # little-endian uint32
    text: str
    finish: Finish
    reply: ReplyParams | None  # None when it was ended before anybody said where it goes
    logprobs: bytes = b""  # a record for each token, if the request asked
    prompt_logprobs: bytes = b""


class Crash(msgspec.Struct, frozen=True):
    """A worker, or its engine, died under a request that had made no progress there."""

    worker: str
    claimed_at: float  # unix seconds, as all times here
    noticed_at: float  # of the record that tells it
    was_alone: bool  # nothing else ran there: the request did it
    engine_only: bool  # the engine process died, the worker's I/O process lived on


class DeadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`jf.dead.<pool>`: a request that was given up, whole, to be looked at or queued again."""

    rid: str
    pool: str
    job_class: str
    reason: str
    crashes: tuple[Crash, ...]
    queued_at: float
    died_at: float
    request: bytes = b""  # as it was queued; empty when no message could hold it
    prompt_object: str = ""  # object store name of our copy of a long prompt


class Cancel(msgspec.Struct, frozen=True, tag_field="t", tag="cancel"):
    """`jf.ctl.<pool>.cancel`: the request has an `end`; drop it."""

    rid: str


class Fenced(msgspec.Struct, frozen=True, tag_field="t", tag="fenced"):
    """`jf.ctl.<pool>.fenced`: this epoch of the request belongs to the past."""

    rid: str
    epoch: int
    worker: str


ControlMessage: TypeAlias = Cancel | Fenced


class PrefixNews(msgspec.Struct, frozen=True):
    """`jf.ctl.<pool>.prefixes`: what a worker has computed lately."""

    worker: str
    hashes: bytes  # of prefix chains, joined
    sessions: bytes = b""  # hashes of those that it serves now, and another one did before


class Offer(msgspec.Struct, frozen=True):
    """A delivery that another worker has more of: `jf.ctl.<pool>.offer.<worker>`.

    With the ack subject goes all that the server knows of the delivery. The load is the offering
    worker's, to be compared with that of the other one.
    """

    data: bytes  # the request as it was queued
    ack_subject: str
    msg_id: str
    num_blocks: int  # of its prefix chain that the offering worker has itself
    num_active: int  # requests that it runs
    num_prefill_tokens: int  # prompt tokens that are before it


class OfferVerdict(enum.StrEnum):
    """The answer to an offer."""

    TAKEN = "taken"  # claimed, or found to be over: the offering worker has nothing to do with it
    FULL = "full"  # no room, or so much less of it that computing the prefix again is quicker
    UNKNOWN = "unknown"  # the prefix is not here any more
    LEAVING = "leaving"  # it takes nothing more


class OfferAnswer(msgspec.Struct, frozen=True):
    """What becomes of an offered request."""

    verdict: OfferVerdict


class ReplayRequest(msgspec.Struct, frozen=True):
    """Asks a detokenizer for the text from `offset` on, and registers `subject` for the rest."""

    rid: str
    offset: int  # code points that the asker has
    subject: str  # "": nobody wants the rest


class ReplayStatus(enum.StrEnum):
    """What a detokenizer knows of a request."""

    RUNNING = "running"
    DONE = "done"
    QUEUED = "queued"  # in the queue or unknown: nothing is in the log yet


class ReplayReply(msgspec.Struct, frozen=True):
    """The answer: a chunk that starts at the offset asked for (or before), and the reply data."""

    status: ReplayStatus
    reply: ReplyParams | None = None
    chunk: TextChunk | None = None


class WorkerState(enum.StrEnum):
    """Where a worker stands."""

    LOADING = "loading"
    READY = "ready"
    PAUSED = "paused"  # takes nothing; what it has goes on
    FROZEN = "frozen"  # takes nothing; what it has stands still
    UPDATING = "updating"  # takes nothing until it has other weights
    DRAINING = "draining"
    HUNG = "hung"  # its engine makes no steps: it gives its requests back, and exits

    @property
    def may_take(self) -> bool:
        """Whether it takes requests, or will, with the revision that its card names."""
        return self not in (WorkerState.UPDATING, WorkerState.DRAINING, WorkerState.HUNG)


class WorkDone(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker has done since its start; tokens are prompt tokens computed, and output."""

    num_tokens: int = 0
    num_finished: int = 0  # requests
    num_finished_tokens: int = 0  # of these
    num_redelivered: int = 0  # deliveries that were not the first of their request


class WorkerCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker's heartbeat in the KV bucket `workers`; its absence means death."""

    worker: str
    pool: str
    model: str
    revision: str
    state: WorkerState
    phase: str = ""  # while loading: what it does
    progress: float = 0.0  # while loading: 0 to 1
    num_running: int = 0
    num_waiting: int = 0
    max_running: int = 0
    kv_cache_usage: float = 0.0
    step: int = 0  # engine steps so far
    host: str = ""
    pid: int = 0
    started_at: float = 0.0  # unix seconds
    prefix_hashes: bytes = b""  # of the prefixes used last, joined; the latest first
    num_updates: int = 0  # of its weights, begun since its start
    update_error: str = ""  # why the last one failed
    work: WorkDone = WorkDone()
    num_kv_tokens: int = 0  # KV slots in all
    num_waiting_tokens: int = 0  # of prompts, not prefilled yet, waiting and running


class WorkerEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="worker"):
    """`jf.event.<pool>`: a worker is in another state, or `starting`, or `gone`."""

    at: float  # unix seconds, as all times here
    pool: str
    model: str
    worker: str
    state: str
    host: str = ""
    detail: str = ""  # how it ended


class ScaleEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", tag="scale"):
    """`jf.event.<pool>`: the number of a pool's workers is changed, and why."""

    at: float
    pool: str
    model: str
    scaler: str  # who decided, and starts or stops workers of its own
    num_workers: int  # of the pool before, those that start included
    num_wanted: int  # of the pool
    reason: str
    need: float  # workers, not rounded
    num_ready: int
    num_waiting: int  # requests
    num_running: int
    num_waiting_tokens: int  # expected of those that wait, prompt and output
    num_running_tokens: int  # expected of those that run, in all
    oldest_wait_s: float
    requests_per_s: float  # that arrive
    worker_tokens_per_s: float  # of a full worker; 0: not known yet


PoolEvent: TypeAlias = WorkerEvent | ScaleEvent


class RoleCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """Heartbeat of a frontend or a detokenizer in the KV bucket `roles`."""

    id: str
    role: str
    host: str = ""
    pid: int = 0
    started_at: float = 0.0


class TenantUse(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a tenant has and had at one frontend."""

    tenant: str
    num_outstanding: tuple[int, ...] = ()  # requests that wait or run, by class
    serial: int = 0  # of the times that its limits were untouched: the counts start anew there
    num_requests: int = 0  # let in since
    num_tokens: int = 0  # prompt and output tokens of the same
    request_level: float | None = None  # what is left of the minute's requests, as it knows
    token_level: float | None = None


class TenantNews(msgspec.Struct, frozen=True):
    """`jf.ctl.tenants`: all that a frontend has to tell of its tenants."""

    frontend: str
    uses: list[TenantUse]


class EmbeddingCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a model embeds, unless a request says otherwise."""

    num_dimensions: int
    pooling: PoolingKind = PoolingKind.LAST
    normalize: bool = True
    is_matryoshka: bool = False  # trained so that the first dimensions mean something alone
    matryoshka_dimensions: tuple[int, ...] = ()  # those it was trained for; empty: any


class VisionCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a model sees an image: the pixels that it reads, and the tokens that stand for them."""

    image_token_id: int  # one stands in the rendered chat, `num_tokens` in the prompt
    num_tokens: int
    height: int  # of the pixels
    width: int
    shortest_edge: int | None  # scaled to it, then cut to height and width; None: stretched to them
    resample: int  # Pillow's number of the filter
    rescale_factor: float  # of pixel values, before the mean is taken off
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class ScoreCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a model scores pairs of texts."""

    method: ScoreMethod
    is_encoder: bool = False  # each token sees all others
    is_probability: bool = True  # else, unless a request says otherwise, the bare output
    answer_ids: tuple[int, ...] = ()  # of YES_NO: the tokens "yes" and "no"


class AdapterCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A LoRA adapter of a model: asked for as a model of its own."""

    name: str
    revision: str  # of its files, which are in the object store
    rank: int
    created: int  # unix seconds
    path: str = ""  # where it was read, for people


class ModelCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A served model in the KV bucket `models`; it stays when no worker runs."""

    name: str
    pool: str  # slug of the name, made by us: fit for a subject
    revision: str  # of the weights
    tokenizer_hash: str  # object store name of the tokenizer files
    max_context_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    created: int  # unix seconds
    default_temperature: float | None = None  # from generation_config.json
    default_top_p: float | None = None
    default_top_k: int | None = None
    default_min_p: float | None = None
    default_repetition_penalty: float | None = None
    can_generate: bool = True
    embedding: EmbeddingCard | None = None  # None: it makes no embeddings
    vision: VisionCard | None = None  # None: it takes no images
    score: ScoreCard | None = None  # None: it scores nothing
    weights_path: str = ""  # of the checkpoint that an update put in place of the workers' own
    replaced: tuple[str, ...] = ()  # revisions in whose place workers load `weights_path`
    adapters: tuple[AdapterCard, ...] = ()  # in the order in which they were loaded


class Readers(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which frontends read a request, in the KV bucket `attached`. None: it is being ended."""

    frontends: tuple[str, ...]
    left_by: str = ""  # the last one, who ends it


class RequestGroup(msgspec.Struct, frozen=True):
    """What a body became; in the KV bucket `idempotency`, what an idempotency key stands for."""

    group_id: str
    fingerprint: str  # of the body, if it came with a key
    created: int  # unix seconds
    frontend_id: str  # who accepted it, and reads it unless `attached` says otherwise


class Incarnation(msgspec.Struct, frozen=True):
    """What a set of streams was made with: every role compares it at start."""

    id: str
    protocol_version: int
    prefix: str
    num_partitions: int
    stream_created: dict[str, str]  # stream -> creation time: a re-made stream restarts sequences
