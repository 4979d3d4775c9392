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
    if model.state_layers and not model.attention_layers and config.kv_memory_bytes is not None:
        raise ConfigError(
            f"kv_memory_bytes={config.kv_memory_bytes} is not possible with {model.architecture}: "
            "it keeps no keys and values; leave it out"
        )
    if model.state_layers and config.guesses_by:
        raise ConfigError(
            f"{config.guesses_by} is not possible with {model.architecture}: the state of "
            "its recurrent layers cannot be taken back where a guess is wrong; leave it out"
        )


def remark(model: ModelConfig, num_snapshots: int) -> str:
    """What the operator of such a model should know."""
    beside = " beside its keys" if model.attention_layers else ", but no keys"
    state = f"a request keeps {model.state_bytes / 1024:.1f} KiB of state{beside} and values"
    if not num_snapshots:
        return f"{state}; no prefix is cached, for there is no room for states at page borders"
    num_bytes = num_snapshots * model.state_bytes
    return (
        f"{state}; prefixes are cached with up to {num_snapshots} such states, "
        f"{num_bytes / (1 << 20):.1f} MiB (state_snapshots)"
    )
