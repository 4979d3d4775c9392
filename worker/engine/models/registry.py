"""From a checkpoint folder to the configuration and the class of its model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    llama_config,
    mistral_config,
    qwen2_config,
    qwen3_config,
)
from worker.engine.models.model_config import ConfigFile, token_ids_of

ReadConfig = Callable[[ConfigFile, str, tuple[int, ...]], DecoderConfig]

# All of them are computed by models/decoder.py.
ARCHITECTURES: dict[str, ReadConfig] = {
    "LlamaForCausalLM": llama_config,
    "MistralForCausalLM": mistral_config,
    "Qwen2ForCausalLM": qwen2_config,
    "Qwen3ForCausalLM": qwen3_config,
}


def read_model_config(model_path: Path) -> DecoderConfig:
    """Raises ConfigError, with a sentence, for a folder or a model that we cannot serve."""
    if not model_path.is_dir():
        raise ConfigError(f"the model path {str(model_path)!r} is not a folder")
    config = ConfigFile.read(model_path / "config.json")
    architectures = config.get("architectures", [])
    for architecture in architectures:
        if architecture in ARCHITECTURES:
            eos_token_ids = _eos_token_ids(model_path, config)
            return ARCHITECTURES[architecture](config, architecture, eos_token_ids)
    named = ", ".join(map(str, architectures)) or "no architecture"
    supported = ", ".join(sorted(ARCHITECTURES))
    raise ConfigError(f"{config.path} names {named}; supported: {supported}")


def _eos_token_ids(model_path: Path, config: ConfigFile) -> tuple[int, ...]:
    """generation_config.json knows the end-of-turn token; config.json may only know the text's."""
    generation_path = model_path / "generation_config.json"
    if generation_path.exists():
        token_ids = token_ids_of(ConfigFile.read(generation_path), "eos_token_id")
        if token_ids is not None:
            return token_ids
    return token_ids_of(config, "eos_token_id") or ()
