"""DeepSeek V3.2 and GLM 5: DeepSeek V3, whose tokens see positions that an indexer chooses."""

from __future__ import annotations

from dataclasses import replace

from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig, with_latents
from worker.engine.models.families.deepseek import experts_by_layer, v3_decoder_config
from worker.engine.models.latent.latent_config import IndexerConfig
from worker.engine.models.model_config import ConfigFile


def deepseek_v32_config(config: ConfigFile) -> DecoderConfig:
    """Each layer chooses for itself. Raises ConfigError, as the other readers do."""
    config.refuse("topk_method", "noaux_tc")
    num_layers = config.integer("num_hidden_layers")
    return _config(config, [True] * num_layers, has_neighbours=False)


def glm_moe_dsa_config(config: ConfigFile) -> DecoderConfig:
    """Some layers see what an earlier one chose."""
    types, num_layers = config.get("indexer_types", None), config.integer("num_hidden_layers")
    chooses = config.by_layer("indexer_types", types, {"full": True, "shared": False}, num_layers)
    if not chooses[0]:
        raise ConfigError(f"{config.path}: 'indexer_types' leaves the first layer without a choice")
    return _config(config, chooses, has_neighbours=True)


def _config(
    config: ConfigFile,
    chooses: list[bool],  # by layer
    *,
    has_neighbours: bool,
) -> DecoderConfig:
    config.refuse("rope_interleave", True)
    config.refuse("indexer_rope_interleave", has_neighbours)
    types, num_layers = config.get("layer_types", None), len(chooses)
    config.by_layer("layer_types", types, {"indexed_attention": True}, num_layers)
    config.integer("q_lora_rank")  # of which the indexer's queries are made
    model = v3_decoder_config(config, experts_by_layer(config))
    assert model.latent is not None, "it is DeepSeek V3's"
    indexer = IndexerConfig(
        num_heads=config.integer("index_n_heads"),
        head_dim=config.integer("index_head_dim", least=model.latent.rotated_dim),
        num_chosen=config.integer("index_topk"),
        has_neighbours=has_neighbours,
        layer_ids=tuple(layer_id for layer_id, each in enumerate(chooses) if each),
    )
    return with_latents(model, replace(model.latent, indexer=indexer))
