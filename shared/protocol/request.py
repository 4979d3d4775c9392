"""What goes into the queue."""

from __future__ import annotations

import enum

import msgspec

from shared.protocol.fields import Place
from shared.protocol.reply import SealedReply, TextParams
from shared.protocol.sampling import PoolingParams, SamplingParams

PROTOCOL_VERSION = 2
# What a build knows beyond the first of its version: one more for each release that writes what the
# one before cannot read. Cards tell it; shared/service/feature_level.py says which one is in force.
FEATURE_LEVEL = 4
FORK_LEVEL = 3  # of requests whose output begins with what they were given
EMBEDS_LEVEL = 4  # of prompts that are embeddings


class ImageSpan(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of a prompt that stand for an image, a moment of a video, or a window of audio; its
    pixels, or the frames of its spectrogram, are in the prompt's object.
    """

    start: Place
    num_tokens: Place
    digest: bytes  # of size, pixels and time: what the prefix cache knows it by
    height: Place = 0  # of the pixels; 0: the model's, whose images are all of one size
    width: Place = 0
    num_frames: Place = 0  # of a moment, which has pixels of each; 0: it is an image
    # It stands right behind another moment of its video, and begins at the position of the first.
    goes_on: bool = False
    time: Place = 0  # positions by which its first axis is later than that of the first
    num_sound_frames: Place = 0  # of a window, without the silence behind them; 0: it is seen


class EmbedsDtype(enum.StrEnum):
    """How the numbers of embeddings are stored, little-endian."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def num_bytes(self) -> int:
        return 4 if self is EmbedsDtype.FLOAT32 else 2


class PromptEmbeds(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the first layer reads in the place of a prompt's tokens, which all are 0: a row for
    each. The rows are in the prompt's object.
    """

    width: Place  # numbers of a row
    dtype: EmbedsDtype
    digest: bytes  # of the rows

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.num_bytes


class PromptAudio(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request hears: frames of a spectrogram, which are in the prompt's object."""

    num_frames: Place  # that are not the silence behind it
    digest: bytes  # of the frames


class KeepPrefix(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that runs the request evicts the beginning of its prompt after all others."""

    seconds: float  # from the end of the run on
    num_tokens: int = 0  # so many of the prompt; 0: all


class GivenOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the output of a fork begins: tokens that the log has of another request, and perhaps
    more. The first worker restates them as if they had been logged before.
    """

    token_ids: bytes  # little-endian uint32
    logprobs: bytes = b""  # a record for each, if the request asks
    prompt_logprobs: bytes = b""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // 4


class GenerateRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tokenized prompt in the queue: `jf.req.<pool>.<lane>.<frontend>.<rid>`."""

    rid: str  # 32 hex digits, made by the frontend
    pool: str
    model: str
    revision: str
    tokenizer_hash: str
    sampling: SamplingParams
    text: TextParams
    reply: SealedReply
    deadline_s: float  # budget from the moment it was queued
    prompt_ids: bytes = b""  # little-endian uint32; empty when prompt_object is set
    # Object store name of a prompt above the inline limit, with images or audio, or of embeddings.
    prompt_object: str = ""
    images: tuple[ImageSpan, ...] = ()  # in their order
    priority: int = 0  # lower is earlier, as in vLLM
    cache_salt: str = ""  # only requests with the same one share cached prefixes
    adapter: str = ""  # revision of the LoRA adapter on top of the weights
    pooling: PoolingParams | None = None  # set: the result is a vector, and no token
    keep: KeepPrefix | None = None
    level: int = 1  # in force when it was queued: who knows less leaves it alone
    session: str = ""  # opaque: what goes on where others of the same owner with it have ended
    # So many tokens at its beginning are declared text, shared under no salt. Who does not know the
    # field shares nothing.
    num_public_tokens: Place = 0
    # It was sent before, or somebody else may send it: another copy may have run, so that this one
    # is claimed before an engine is given it.
    may_be_copy: bool = False
    given: GivenOutput | None = None
    embeds: PromptEmbeds | None = None  # from level 4 on; None: the prompt is of tokens
    # From level 4 on: it is transcribed. The prompt is that of the first window; the output is of
    # one window behind the other, as shared/token_log/transcript.py reads it.
    audio: PromptAudio | None = None


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
