"""Encoders that score a text as a whole: asked of transformers' code, before weights are read."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared.checkpoint.json_file import read_json
from shared.checkpoint.pooled_files import encoder_context_len
from shared.errors import ConfigError
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.transformers_config import MODEL_ERRORS, forget_quantization

ENCODER_ATTENTION = "jetflock_encoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """A cross-encoder. Each of its tokens sees all others: it keeps no keys and values."""

    hf_config: Any
    pad_token_id: int
    has_token_types: bool  # which of two texts a token is of


def read_encoder_config(model_path: Path, architecture: str) -> EncoderConfig:
    """Raises ConfigError."""
    from transformers import AutoConfig

    try:
        hf_config = AutoConfig.from_pretrained(model_path, local_files_only=True)
        forget_quantization(hf_config)
        with torch.device("meta"):
            model = make_encoder(hf_config, torch.bfloat16)
    except MODEL_ERRORS as exc:
        raise ConfigError(f"{architecture} cannot be served: {exc}") from exc
    if type(model).__name__ != architecture:
        raise ConfigError(
            f"{architecture} is not the classifier of model_type {hf_config.model_type!r}"
        )
    max_context_len = encoder_context_len(model_path, read_json(model_path / "config.json", dict))
    return EncoderConfig(
        architecture=architecture,
        vocab_size=hf_config.vocab_size,
        hidden_size=hf_config.hidden_size,
        num_parameters=sum(each.numel() for each in model.parameters()),
        attention_layers=(),
        max_context_len=max_context_len,
        max_context_limit=max_context_len,
        stored_dtype=str(hf_config.dtype or "float32").removeprefix("torch."),
        eos_token_ids=(),
        hf_config=hf_config,
        pad_token_id=hf_config.pad_token_id or 0,
        has_token_types=getattr(hf_config, "type_vocab_size", 0) > 1,
    )


def make_encoder(hf_config: Any, dtype: torch.dtype) -> Any:
    """With weights that mean nothing, on the device of the context."""
    import transformers

    register_encoder_attention()
    auto_model: Any = transformers.AutoModelForSequenceClassification
    model = auto_model.from_config(
        copy.deepcopy(hf_config), dtype=dtype, attn_implementation=ENCODER_ATTENTION
    )
    return model.eval()


def register_encoder_attention() -> None:
    """Makes `attn_implementation=ENCODER_ATTENTION` known: torch's own, with the masks below."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ENCODER_ATTENTION, sdpa_attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ENCODER_ATTENTION, _mask)


def _mask(
    *,
    attention_mask: torch.Tensor | None = None,
    allow_is_bidirectional_skip: bool = False,
    **options: Any,
) -> torch.Tensor | None:
    """Looks at no values: transformers would, to see whether it is needed, and on a GPU wait."""
    from transformers.masking_utils import sdpa_mask

    mask: torch.Tensor | None = sdpa_mask(
        attention_mask=attention_mask,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip and attention_mask is None,
        **options,
    )
    return mask
