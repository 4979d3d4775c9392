"""GLM: gates and what they are multiplied with in one matrix, a part of each head rotated."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, decoder_config, same_window
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config


def glm_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    return decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, None),
        has_qkv_bias=config.boolean("attention_bias", default=True),
        rope=partial_rope_config(config, has_neighbours=True),
        stored_gate_up=("gate_up_proj",),
    )
