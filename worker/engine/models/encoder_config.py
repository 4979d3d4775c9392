"""Encoders that score or embed whole texts: asked of transformers before weights are read."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared.checkpoint.json_file import read_json
from shared.checkpoint.pooled_files import encoder_context_len, encoder_modules
from shared.checkpoint.sentence_modules import SentenceModules
from shared.errors import ConfigError
from worker.engine.models.model_config import ModelConfig, is_classifier
from worker.engine.models.transformers_config import MODEL_ERRORS, forget_quantization

ENCODER_ATTENTION = "jetflock_encoder"
_WITH_POOLER = frozenset({"BertModel", "NomicBertModel", "RobertaModel", "XLMRobertaModel"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """Scores pairs, or embeds texts. Each of its tokens sees all others: it keeps no keys and
    values.
    """

    hf_config: Any
    modules: SentenceModules | None  # from hidden states to a vector; None: its head gives scores
    pad_token_id: int
    has_token_types: bool  # which of two texts a token is of


def read_encoder_config(model_path: Path, architecture: str) -> EncoderConfig:
    """Raises ConfigError."""
    from transformers import AutoConfig

    try:
        hf_config = AutoConfig.from_pretrained(model_path, local_files_only=True)
        forget_quantization(hf_config)
        hf_config.use_cache = False  # of those that may decode, too
        with torch.device("meta"):
            model = make_encoder(hf_config, torch.bfloat16)
    except MODEL_ERRORS as exc:
        raise ConfigError(f"{architecture} cannot be served: {exc}") from exc
    if type(model).__name__ != architecture:
        kind = "classifier" if is_classifier(architecture) else "bare model"
        raise ConfigError(
            f"{architecture} is not the {kind} of model_type {hf_config.model_type!r}"
        )
    if getattr(hf_config, "use_bidirectional_attention", True) is not True:
        raise ConfigError(
            f"{architecture} without use_bidirectional_attention is a decoder: take one with its "
            "head"
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
        modules=None if is_classifier(architecture) else encoder_modules(model_path),
        pad_token_id=hf_config.pad_token_id or 0,
        has_token_types=getattr(hf_config, "type_vocab_size", 0) > 1,
    )


def make_encoder(hf_config: Any, dtype: torch.dtype) -> Any:
    """An encoder with weights that mean nothing, on the device of the context."""
    register_encoder_attention()
    model = encoder_class(hf_config).from_config(
        copy.deepcopy(hf_config),
        dtype=dtype,
        attn_implementation=ENCODER_ATTENTION,
        **encoder_options(hf_config),
    )
    return model.eval()


def encoder_class(hf_config: Any) -> Any:
    """The class of transformers that makes such models."""
    import transformers

    if is_classifier(str(hf_config.architectures[0])):
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModel


def encoder_options(hf_config: Any) -> dict[str, bool]:
    """Some would make a layer of a first token, which no embedding is made of."""
    has_pooler = hf_config.architectures[0] in _WITH_POOLER
    return {"add_pooling_layer": False} if has_pooler else {}


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
