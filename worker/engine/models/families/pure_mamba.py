"""Mamba 2, Mamba 1 and Falcon Mamba: no layer attends, so that a text is kept as a state alone."""

from __future__ import annotations

from dataclasses import replace

from shared.checkpoint.recurrent_text import DEFAULT_CONTEXT_LEN, MAX_CONTEXT_LEN
from worker.engine.models.decoder_config import DecoderConfig, decoder_config, with_recurrent_layers
from worker.engine.models.families.mamba import mamba_config
from worker.engine.models.families.nemotron_h import STORED_NAMES
from worker.engine.models.layer_config import NormPlaces
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import ChannelMambaConfig, RecurrentConfig

_NAMES = {
    "mamba_n_heads": "num_heads",
    "mamba_n_groups": "n_groups",
    "mamba_d_head": "head_dim",
    "mamba_d_state": "state_size",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_proj_bias": "use_bias",
    "rms_norm_eps": "layer_norm_epsilon",
}


def mamba2_config(config: ConfigFile) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    mamba = mamba_config(config.renamed(_NAMES), config.integer("hidden_size"))
    return _of_layers(config, mamba)


def mamba1_config(config: ConfigFile) -> DecoderConfig:
    """And Falcon Mamba."""
    config.refuse("hidden_act", "silu")
    has_norms = config.architecture == "FalconMambaForCausalLM"
    mamba = ChannelMambaConfig(
        hidden_size=config.integer("hidden_size"),
        num_channels=config.integer("intermediate_size"),
        state_size=config.integer("state_size"),
        rank=config.integer("time_step_rank"),
        kernel_size=config.integer("conv_kernel", least=2),
        has_conv_bias=config.boolean("use_conv_bias", default=True),
        has_projection_bias=config.boolean("use_bias", default=False),
        norm="bare" if has_norms else "none",
        norm_eps=config.number("mixer_rms_eps", 1e-6),
    )
    return _of_layers(config, mamba)


def _of_layers(config: ConfigFile, recurrent: RecurrentConfig) -> DecoderConfig:
    """All alike, of one norm and a mixer."""
    no_attention = config.renamed(_NAMES).replaced(
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        intermediate_size=1,
        max_position_embeddings=config.integer("max_position_embeddings", DEFAULT_CONTEXT_LEN),
    )
    model = decoder_config(no_attention)
    model = replace(
        model,
        max_context_limit=max(model.max_context_len, MAX_CONTEXT_LEN),
        norm_places=NormPlaces(before_attention="norm", before_mlp=None),
        has_mlp=(False,) * model.num_layers,
        stored_names=STORED_NAMES,
    )
    return with_recurrent_layers(model, [recurrent] * model.num_layers)
