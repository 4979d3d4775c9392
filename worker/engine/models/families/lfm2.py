"""LFM2: short convolutions, and attention in some layers."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    with_recurrent_layers,
)
from worker.engine.models.layer_config import LLAMA_MLP, HeadNormConfig, NormConfig, NormPlaces
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import ShortConvConfig, layers_that_attend

_PLACES = NormPlaces(before_attention="operator_norm", before_mlp="ffn_norm")
_STORED_NAMES = (
    ("model.norm.", "model.embedding_norm."),
    (".recurrent.", ".conv."),
    (".self_attn.o_proj.", ".self_attn.out_proj."),
    (".mlp.gate_proj.", ".feed_forward.w1."),
    (".mlp.up_proj.", ".feed_forward.w3."),
    (".mlp.down_proj.", ".feed_forward.w2."),
)


def lfm2_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> DecoderConfig:
    """Raises ConfigError, as the other readers do."""
    model = decoder_config(
        config,
        architecture,
        eos_token_ids,
        windows=same_window(config, None),
        norm=NormConfig(eps=config.number("norm_eps")),
        mlp=LLAMA_MLP,
    )
    model = replace(
        model,
        intermediate_size=_intermediate_size(config),
        norm_places=_PLACES,
        head_norm=HeadNormConfig(modules=("q_layernorm", "k_layernorm")),
        stored_names=_STORED_NAMES,
    )
    convolution = ShortConvConfig(
        num_channels=model.hidden_size,
        kernel_size=config.integer("conv_L_cache", least=2),
        has_bias=config.boolean("conv_bias", default=False),
    )
    attends = layers_that_attend(config, model.num_layers, "conv")
    return with_recurrent_layers(config, model, [None if each else convolution for each in attends])


def _intermediate_size(config: ConfigFile) -> int:
    """Two thirds of what the file says, rounded up, unless it says that they are meant."""
    size = config.integer("intermediate_size")
    if not config.boolean("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(2 * size / 3)
    if config.get("block_ffn_dim_multiplier", None) is None:
        return size
    multiple = config.integer("block_multiple_of", 256)
    size = int(config.positive_number("block_ffn_dim_multiplier") * size)
    return -(-size // multiple) * multiple
