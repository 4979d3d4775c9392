"""An encoder that transformers computes: whole texts at once, padded to one length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shared.errors import ConfigError
from shared.protocol.sampling import PoolingParams
from worker.engine.encoder.sentence_head import PooledText, SentenceHead
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.models.dummy_weights import fill_parameters
from worker.engine.models.encoder_config import (
    ENCODER_ATTENTION,
    EncoderConfig,
    encoder_class,
    encoder_options,
    make_encoder,
    register_encoder_attention,
)
from worker.engine.models.loader import OnProgress
from worker.engine.models.transformers_model import load_pretrained
from worker.engine.request.step_result import SampleError
from worker.engine.sampling.pooler import embedding_vector, score_vector
from worker.engine_link.engine_config import LoadFormat


class EncoderModel:
    """Nothing of it changes, and it keeps nothing of what it has computed."""

    def __init__(self, config: EncoderConfig, model: Any, head: SentenceHead | None) -> None:
        self._config = config
        self._model = model
        self._head = head  # None: the model's own gives scores

    def outputs(
        self,
        input_ids: torch.Tensor,  # [num_texts, num_tokens] int64
        token_types: torch.Tensor,  # the same; 1: of the second text of a pair
        mask: torch.Tensor | None,  # the same; 0: padding. None: there is none
        texts: Sequence[PooledText],
    ) -> torch.Tensor:
        """[num_texts, num_outputs] float32, on the model's device, as all that is given."""
        types = {"token_type_ids": token_types} if self._config.has_token_types else {}
        output = self._model(input_ids=input_ids, attention_mask=mask, **types)
        if self._head is not None:
            return self._head.vectors(output.last_hidden_state, texts)
        logits: torch.Tensor = output.logits
        return logits.float()

    def pooled(self, row: torch.Tensor, pooling: PoolingParams) -> bytes | SampleError:
        """The answer of one text's outputs, on the host."""
        if self._head is None:
            return score_vector(row, pooling)
        return embedding_vector(row, pooling)

    @property
    def pad_token_id(self) -> int:
        return self._config.pad_token_id

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """Raises ConfigError."""
        raise ConfigError(f"LoRA adapters are for decoders, this is {self._config.architecture}")


def load_encoder(
    config: EncoderConfig,
    model_path: Path,
    load_format: LoadFormat,
    dtype: torch.dtype,
    on_progress: OnProgress,
    device: torch.device,
) -> EncoderModel:
    """Raises ConfigError for a checkpoint that does not fit its configuration."""
    head = (
        None if config.modules is None else SentenceHead.load(config.modules, load_format, device)
    )
    if load_format == "dummy":
        with device:
            model = make_encoder(config.hf_config, dtype)
        fill_parameters(model, on_progress)
        return EncoderModel(config, model, head)
    register_encoder_attention()
    model = load_pretrained(
        encoder_class(config.hf_config),
        model_path,
        config.hf_config,
        dtype,
        on_progress,
        device,
        attention=ENCODER_ATTENTION,
        options=encoder_options(config.hf_config),
    )
    return EncoderModel(config, model, head)
