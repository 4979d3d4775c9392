"""Solar Open: Llama with experts as DeepSeek V3 has them, in all layers."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, decoder_config, with_experts
from worker.engine.models.families.deepseek import v3_experts
from worker.engine.models.model_config import ConfigFile


def solar_open_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    experts = v3_experts(config)
    model = decoder_config(
        config,
        has_qkv_bias=config.boolean("attention_bias", default=False),
        intermediate_size=experts.intermediate_size,
    )
    return with_experts(config, model, experts, [True] * model.num_layers)
