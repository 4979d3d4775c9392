"""What is not possible with layers that keep a state in the place of keys and values."""

from __future__ import annotations

from shared.errors import ConfigError
from worker.engine.models.model_config import ModelConfig
from worker.engine_link.engine_config import EngineConfig


def check_on_gpu(model: ModelConfig) -> None:
    """Raises ConfigError."""
    if model.state_layers:
        raise ConfigError(
            f"{model.architecture} is not possible on a GPU: the state of its recurrent layers is "
            "kept by CPUs alone; device=cpu serves it"
        )


def check_on_cpu(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ConfigError."""
    if model.state_layers and config.speculate != "off":
        raise ConfigError(
            f"speculate={config.speculate} is not possible with {model.architecture}: the state of "
            "its recurrent layers cannot be taken back where a guess is wrong; leave it out"
        )


def remark(model: ModelConfig) -> str:
    """What the operator of such a model should know."""
    return (
        f"a request keeps {model.state_bytes / 1024:.1f} KiB of state beside its keys and values; "
        "every prompt is computed from its first token, for no prefix is cached"
    )
