"""A draft model that is made of some layers of the model that it guesses for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from shared.errors import ConfigError
from worker.engine.training.student import Batch, Teacher


class LayersStudent:
    """A `Student`. It begins with embeddings, head and some layers of the teacher."""

    def __init__(self, teacher: Teacher, num_layers: int) -> None:
        """Raises ConfigError."""
        from transformers import AutoModelForCausalLM  # late: it takes seconds

        auto_model: Any = AutoModelForCausalLM
        self._teacher = teacher
        self.module = auto_model.from_config(
            _shortened(teacher.config, num_layers), dtype=torch.float32
        )
        self.module.load_state_dict(_shortened_weights(teacher.model, num_layers), strict=False)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        with torch.no_grad():
            wanted = self._teacher.model(batch.input_ids).logits[batch.counts]
        found = self.module(batch.input_ids).logits[batch.counts]
        loss = functional.kl_div(
            found.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        share = (found.argmax(-1) == wanted.argmax(-1)).float().mean()
        return loss, float(share)

    def save(self, out: Path) -> str:
        self.module.to(self._teacher.dtype).save_pretrained(out)
        self._teacher.copy_tokenizer(out)
        return f"{self._teacher.path} --draft-model {out}"


def _shortened(config: Any, num_layers: int) -> Any:
    """Raises ConfigError."""
    if not 0 < num_layers < config.num_hidden_layers:
        raise ConfigError(
            f"num_layers must be 1 to {config.num_hidden_layers - 1}, fewer than the model has, "
            f"not {num_layers}"
        )
    values = config.to_dict()
    if values.get("layer_types"):
        kept = _kept_layers(config.num_hidden_layers, num_layers)
        values["layer_types"] = [values["layer_types"][layer] for layer in kept]
    return type(config).from_dict(values | {"num_hidden_layers": num_layers})


def _shortened_weights(model: Any, num_layers: int) -> dict[str, torch.Tensor]:
    kept = _kept_layers(model.config.num_hidden_layers, num_layers)
    weights: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        before, found, after = name.partition(".layers.")
        layer, _, rest = after.partition(".")
        if not found:
            weights[name] = weight.clone()
        elif int(layer) in kept:
            weights[f"{before}.layers.{kept.index(int(layer))}.{rest}"] = weight.clone()
    return weights


def _kept_layers(num_there: int, num_kept: int) -> list[int]:
    """The first ones, and the last."""
    return [*range(num_kept - 1), num_there - 1]
