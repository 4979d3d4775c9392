"""Hunyuan with experts in all layers, beside an MLP of their size for all tokens."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, with_experts
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.families.hunyuan import hunyuan_config
from worker.engine.models.model_config import ConfigFile, NotFused


def hunyuan_moe_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = hunyuan_config(config)
    experts = ExpertsConfig(
        num_experts=_same_in_all_layers(config, "num_experts"),
        num_chosen=_same_in_all_layers(config, "moe_topk"),
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        mlp=model.mlp,
        scoring="softmax",
        is_normed=True,
        shared_size=model.intermediate_size,
        shared_name="shared_mlp",
        shared_mlp=model.mlp,
    )
    model = replace(model, stored_names=((".mlp.gate.", ".mlp.gate.wg."),))
    return with_experts(config, model, experts, [True] * model.num_layers)


def _same_in_all_layers(config: ConfigFile, name: str) -> int:
    """Of a number, or one for each layer. Raises NotFused where they differ."""
    value = config.get(name, None)
    if not isinstance(value, list):
        return config.integer(name)
    if len(set(value)) != 1:
        raise NotFused(f"{config.path}: {name}={value!r} differs by layer")
    return ConfigFile(config.path, {name: value[0]}).integer(name)
