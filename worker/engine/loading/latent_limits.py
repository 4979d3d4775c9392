"""What is not possible with layers that keep a latent in the place of keys and values."""

from __future__ import annotations

from shared.errors import ConfigError
from worker.engine.models.model_config import ModelConfig


def check_on_gpu(model: ModelConfig) -> None:
    """Raises ConfigError."""
    if any(layer.latent_dim is not None for layer in model.attention_layers):
        raise ConfigError(
            f"{model.architecture} is not possible on a GPU: no kernel there attends over its "
            "latents; device=cpu serves it"
        )
