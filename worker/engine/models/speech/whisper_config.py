"""The configuration of Whisper."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shared.checkpoint.hearing_files import hearing_card
from shared.checkpoint.json_file import read_json
from shared.errors import ConfigError
from shared.protocol.hearing_card import NUM_SOUNDS, HearingCard
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.transformers_config import MODEL_ERRORS, read_hf_config


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig(ModelConfig):
    """Each layer of its decoder attends over the text, and over a window of audio."""

    hf_config: Any
    card: HearingCard
    num_layers: int  # of the decoder
    num_heads: int
    mlp_size: int

    def cross_bytes(self, dtype: torch.dtype) -> int:
        """The bytes of a request: keys and values of a window, in all layers."""
        return 2 * self.num_layers * NUM_SOUNDS * self.hidden_size * dtype.itemsize


def read_whisper_config(model_path: Path, architecture: str) -> WhisperConfig:
    """Raises ConfigError."""
    card = hearing_card(model_path, read_json(model_path / "config.json", dict))
    assert card is not None, "it is a model of speech"
    hf_config = read_hf_config(model_path)
    hidden_size, num_heads = hf_config.d_model, hf_config.decoder_attention_heads
    if hf_config.activation_function != "gelu" or hf_config.scale_embedding:
        raise ConfigError(
            f"{model_path}/config.json: activation_function={hf_config.activation_function!r} and "
            f"scale_embedding={hf_config.scale_embedding!r} are not those of Whisper"
        )
    try:
        with torch.device("meta"):
            num_parameters = sum(each.numel() for each in _whole(hf_config).parameters())
    except MODEL_ERRORS as exc:
        raise ConfigError(f"{architecture} cannot be served: {exc}") from exc
    head_dim = hidden_size // num_heads
    layer = AttentionLayer(num_heads, num_heads, head_dim, head_dim**-0.5)
    max_context_len = card.max_context_len
    return WhisperConfig(
        architecture=architecture,
        vocab_size=hf_config.vocab_size,
        hidden_size=hidden_size,
        num_parameters=num_parameters,
        attention_layers=(layer,) * hf_config.decoder_layers,
        max_context_len=max_context_len,
        max_context_limit=max_context_len,
        stored_dtype=str(hf_config.dtype or "float32").removeprefix("torch."),
        eos_token_ids=(card.end_id,),
        hf_config=hf_config,
        card=card,
        num_layers=hf_config.decoder_layers,
        num_heads=num_heads,
        mlp_size=hf_config.decoder_ffn_dim,
        unread_prefixes=("proj_out.",) if hf_config.tie_word_embeddings else (),
    )


def make_encoder(config: WhisperConfig, dtype: torch.dtype) -> Any:
    """Transformers' own, with weights that mean nothing, on the device of the context."""
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    hf_config = copy.deepcopy(config.hf_config)
    return WhisperEncoder._from_config(hf_config, attn_implementation="sdpa", dtype=dtype).eval()


def _whole(hf_config: Any) -> Any:
    from transformers import WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(copy.deepcopy(hf_config))
