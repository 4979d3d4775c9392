"""What is answered about tokenizers."""

from __future__ import annotations

from frontend.text.wire_struct import Count, WireStruct


class Tokenized(WireStruct, frozen=True, kw_only=True):
    """The ids of a prompt."""

    count: Count
    max_model_len: Count
    tokens: list[Count]
    token_strs: list[str | None] | None  # where they were asked for


class Detokenized(WireStruct, frozen=True, kw_only=True):
    """The text of ids."""

    prompt: str


class Templated(WireStruct, frozen=True, kw_only=True):
    """The text that a chat becomes."""

    prompt: str


class TokenizerInfo(WireStruct, frozen=True, kw_only=True):
    """What a tokenizer's files say of it, in the words of tokenizer_config.json."""

    model: str
    max_model_len: Count
    vocab_size: Count
    tokenizer_hash: str
    tokenizer_class: str | None
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    sep_token: str | None
    pad_token: str | None
    cls_token: str | None
    chat_template: str | None


class PropsParams(WireStruct, frozen=True, kw_only=True):
    """How a model samples when a request says nothing."""

    temperature: float
    top_p: float
    top_k: float
    min_p: float
    repeat_penalty: float


class PropsSettings(WireStruct, frozen=True, kw_only=True):
    """What a request gets that says nothing."""

    n_ctx: Count
    params: PropsParams


class Modalities(WireStruct, frozen=True, kw_only=True):
    """What a model takes beside text."""

    vision: bool
    audio: bool


class Props(WireStruct, frozen=True, kw_only=True):
    """What llama.cpp's `/props` tell of a model."""

    default_generation_settings: PropsSettings
    model_alias: str
    modalities: Modalities
    chat_template: str
    bos_token: str
    eos_token: str
