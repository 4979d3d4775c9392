"""DeepSeek V3 and its kind, as far as all layers are dense: attention over latents."""

from __future__ import annotations

from shared.errors import ConfigError
from worker.engine.models.decoder_config import (
    DecoderConfig,
    Scales,
    decoder_config,
    same_window,
    with_latents,
)
from worker.engine.models.latent.latent_config import latent_config
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import neighbours_rope_config


def deepseek_v3_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    num_dense = config.integer("first_k_dense_replace", 0, least=0)
    if num_dense < config.integer("num_hidden_layers"):
        raise ConfigError(
            f"{config.path}: first_k_dense_replace={num_dense} is not supported: experts beside "
            "latents are not computed, all layers must be dense"
        )
    return latent_decoder_config(config, architecture, eos_token_ids)


def youtu_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Youtu-LLM: dense in all layers."""
    return latent_decoder_config(config, architecture, eos_token_ids)


def minicpm3_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """MiniCPM 3: dense, and its streams have factors."""
    num_layers = config.integer("num_hidden_layers")
    size = config.integer("hidden_size")
    scales = Scales(
        embedding=config.positive_number("scale_emb", 12.0),
        residual=config.positive_number("scale_depth", 1.4) / num_layers**0.5,
        logits_divisor=size / config.integer("dim_model_base", 256),
    )
    return latent_decoder_config(
        config,
        architecture,
        eos_token_ids,
        has_neighbours=False,
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        scales=scales,
    )


def latent_decoder_config(
    config: ConfigFile,
    architecture: str,
    eos_token_ids: tuple[int, ...],
    *,
    has_neighbours: bool | None = None,  # of what is rotated; None: as config.json says
    has_mlp_bias: bool = False,
    scales: Scales | None = None,
) -> DecoderConfig:
    """With dense layers. Raises ConfigError."""
    latent = latent_config(config)
    if has_neighbours is None:
        has_neighbours = config.boolean("rope_interleave", default=True)
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, None),
        head_dim=latent.rotated_dim,
        rope=neighbours_rope_config(config, has_neighbours=has_neighbours),
        has_mlp_bias=has_mlp_bias,
        scales=scales or Scales(),
    )
    return with_latents(model, latent)
