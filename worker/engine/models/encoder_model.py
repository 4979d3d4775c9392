"""A cross-encoder that transformers computes: whole texts at once, padded to one length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from shared.errors import ConfigError
from worker.engine.config import LoadFormat
from worker.engine.lora.lora_projection import LoraProjection
from worker.engine.lora.lora_weights import LoraWeights
from worker.engine.models.dummy_weights import fill_with_noise
from worker.engine.models.encoder_config import EncoderConfig, make_encoder
from worker.engine.models.loader import OnProgress
from worker.engine.models.transformers_model import load_pretrained


class EncoderInput(NamedTuple):
    """A prompt of two texts."""

    token_ids: Sequence[int]
    second_start: int  # index of the first token of the second text; 0: all are of the first


class EncoderModel:
    """Nothing of it changes, and it keeps nothing of what it has computed."""

    def __init__(self, config: EncoderConfig, model: Any) -> None:
        self._config = config
        self._model = model

    def logits(self, inputs: Sequence[EncoderInput]) -> torch.Tensor:
        """[num_inputs, num_outputs] float32. Those of about the same length go together."""
        logits = torch.empty(len(inputs), self._config.num_outputs)
        for group in _groups([len(each.token_ids) for each in inputs]):
            logits[group] = self._padded([inputs[idx] for idx in group])
        return logits

    def _padded(self, inputs: Sequence[EncoderInput]) -> torch.Tensor:
        shape = len(inputs), max(len(each.token_ids) for each in inputs)
        input_ids = torch.full(shape, self._config.pad_token_id)
        mask, token_types = torch.zeros(2, *shape, dtype=torch.int64)
        for row, (token_ids, second_start) in enumerate(inputs):
            input_ids[row, : len(token_ids)] = torch.tensor(token_ids)
            mask[row, : len(token_ids)] = 1
            if second_start:
                token_types[row, second_start : len(token_ids)] = 1
        types = {"token_type_ids": token_types} if self._config.has_token_types else {}
        logits: torch.Tensor = self._model(input_ids=input_ids, attention_mask=mask, **types).logits
        return logits.float()

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """Raises ConfigError."""
        raise ConfigError(f"LoRA adapters are for decoders, this is {self._config.architecture}")


def _groups(lengths: Sequence[int]) -> list[list[int]]:
    """Indices: in a group none is much longer than the shortest, so that little is padding."""
    groups: list[list[int]] = []
    most = 0
    for idx in sorted(range(len(lengths)), key=lengths.__getitem__):
        if lengths[idx] > most:
            groups.append([])
            most = lengths[idx] * 5 // 4 + 16
        groups[-1].append(idx)
    return groups


def load_encoder(
    config: EncoderConfig,
    model_path: Path,
    load_format: LoadFormat,
    dtype: torch.dtype,
    on_progress: OnProgress,
) -> EncoderModel:
    """Raises ConfigError for a checkpoint that does not fit its configuration."""
    if load_format == "dummy":
        model = make_encoder(config.hf_config, dtype)
        for name, parameter in model.named_parameters():
            fill_with_noise(name, parameter.data)
        return EncoderModel(config, model)
    import transformers

    auto_model: Any = transformers.AutoModelForSequenceClassification
    model = load_pretrained(
        auto_model, model_path, config.hf_config, dtype, on_progress, attention=None
    )
    return EncoderModel(config, model.eval())
