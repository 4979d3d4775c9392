"""What is not possible with a model on a GPU, or on a CPU with the flags that are set."""

from __future__ import annotations

import torch

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_config import ModelConfig
from worker.engine_link.engine_config import EngineConfig


def check_on_gpu(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ConfigError."""
    if any(layer.num_chosen is not None for layer in model.attention_layers):
        raise ConfigError(
            f"{model.architecture} is not possible on a GPU: no kernel there chooses the positions "
            "that its tokens see; device=cpu serves it"
        )
    _check_states(config, model)
    if model.state_layers and any(config.cuda_graph_tokens):
        raise ConfigError(
            f"cuda_graph_tokens={config.cuda_graph_tokens} is not possible with "
            f"{model.architecture}: with recurrent layers steps that read prompts run without CUDA "
            "graphs; leave it out"
        )
    if _needs_made_experts(model):
        raise _not_made(model, "on a GPU they are computed in 16 bits")


def no_images_on_gpu(model: ModelConfig, config: EngineConfig) -> str:
    """Why images and audio are refused there; empty: they are not, or the model takes none."""
    if model.tower is None:
        return ""
    if model.sight is None:
        told = f"audio of {model.tower.architecture} is heard"
        return f"{told} on CPUs with tp=1 alone: this worker serves its text"
    has_inputs = isinstance(model, DecoderConfig) and model.layer_inputs is not None
    if model.sight.has_axes or model.sight.is_mutual or has_inputs:
        where = "on CPUs with tp=1 alone"
    elif config.num_ranks > 1:
        where = f"with {config.divided_by.partition('=')[0]}=1 alone"
    else:
        return ""
    return f"images of {model.tower.architecture} are computed {where}: this worker serves its text"


def check_on_cpu(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> None:
    """Before our C++ is looked for. Raises ConfigError."""
    _check_states(config, model)
    if _needs_made_experts(model):
        if config.cpu_kernels == "torch":
            raise _not_made(model, "cpu_kernels is torch")
        if config.load_format == "dummy":
            raise _not_made(model, "load_format is dummy")
        if dtype is not torch.bfloat16:
            raise _not_made(model, f"dtype is {str(dtype).removeprefix('torch.')}")


def _check_states(config: EngineConfig, model: ModelConfig) -> None:
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


def check_library(model: ModelConfig, *, is_there: bool) -> None:
    """When our C++ has been looked for. Raises ConfigError."""
    if _needs_made_experts(model) and not is_there:
        raise _not_made(model, "it is not there, as the log says")


def remark_on_states(model: ModelConfig, num_snapshots: int) -> str:
    """What the operator of a model with recurrent layers should know."""
    beside = " beside its keys" if model.attention_layers else ", but no keys"
    state = f"a request keeps {model.state_bytes / 1024:.1f} KiB of state{beside} and values"
    if not num_snapshots:
        return f"{state}; no prefix is cached, for there is no room for states at page borders"
    num_bytes = num_snapshots * model.state_bytes
    return (
        f"{state}; prefixes are cached with up to {num_snapshots} such states, "
        f"{num_bytes / (1 << 20):.1f} MiB (state_snapshots)"
    )


def _needs_made_experts(model: ModelConfig) -> bool:
    """Whether its experts are to be codes from the time they are loaded, and go through our C++
    alone: our own decoder makes the same values dense where it has to.
    """
    return model.made_format is not None and not isinstance(model, DecoderConfig)


def _not_made(model: ModelConfig, reason: str) -> ConfigError:
    return ConfigError(
        f"quantization={model.made_format} is not possible with {model.architecture}: its experts "
        f"are multiplied in codes by our C++ for CPUs in bfloat16, and {reason}"
    )
