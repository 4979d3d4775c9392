"""What families with attention over latents (MLA) share, and those of them without experts."""

from __future__ import annotations

from worker.engine.models.decoder_config import DecoderConfig, Scales, decoder_config, with_latents
from worker.engine.models.latent.latent_config import latent_config
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import neighbours_rope_config


def youtu_config(config: ConfigFile) -> DecoderConfig:
    """Youtu-LLM. Raises ConfigError, as the other readers do."""
    return latent_decoder_config(config)


def minicpm3_config(config: ConfigFile) -> DecoderConfig:
    """MiniCPM 3: its streams have factors."""
    num_layers, size = config.integer("num_hidden_layers"), config.integer("hidden_size")
    scales = Scales(
        embedding=config.positive_number("scale_emb", 12.0),
        residual=config.positive_number("scale_depth", 1.4) / num_layers**0.5,
        logits_divisor=size / config.integer("dim_model_base", 256),
    )
    return latent_decoder_config(
        config,
        has_neighbours=False,
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        scales=scales,
    )


def latent_decoder_config(
    config: ConfigFile,
    *,
    has_neighbours: bool | None = None,  # of what is rotated; None: as config.json says
    has_mlp_bias: bool = False,
    scales: Scales | None = None,
) -> DecoderConfig:
    """The config with dense layers. Raises ConfigError."""
    latent = latent_config(config)
    if has_neighbours is None:
        has_neighbours = config.boolean("rope_interleave", default=True)
    model = decoder_config(
        config,
        head_dim=latent.rotated_dim,
        rope=neighbours_rope_config(config, has_neighbours=has_neighbours),
        has_mlp_bias=has_mlp_bias,
        scales=scales or Scales(),
    )
    return with_latents(model, latent)
