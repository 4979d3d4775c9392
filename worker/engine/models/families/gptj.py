"""GPT-J: attention and MLP beside each other behind one LayerNorm, a part of each head rotated."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import DecoderConfig, decoder_config
from worker.engine.models.families.gpt2 import NAMES
from worker.engine.models.families.gpt_neox import MASKS
from worker.engine.models.layer_config import MlpConfig, NormConfig, NormPlaces, activation
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.rope_config import partial_rope_config


def gptj_config(config: ConfigFile) -> DecoderConfig:
    """Its head has a bias. Raises ConfigError, as the other readers do."""
    config = config.renamed(NAMES).with_heads_of_width()
    share = config.integer("rotary_dim") / config.integer("head_dim")
    rope = partial_rope_config(
        config.replaced(partial_rotary_factor=share, rope_theta=1e4), has_neighbours=True
    )
    kind = activation(config, "activation_function")
    model = decoder_config(
        config,
        has_mlp_bias=True,
        norm=NormConfig(kind="layer", eps=config.number("layer_norm_epsilon"), has_bias=True),
        rope=rope,
        mlp=MlpConfig(activation=kind, is_gated=False, up=("fc_in",), down="fc_out"),
        intermediate_size=config.optional_integer("n_inner", None)
        or 4 * config.integer("hidden_size"),
    )
    layers = [f"transformer.h.{layer_id}" for layer_id in range(model.num_layers)]
    return replace(
        model,
        norm_places=NormPlaces(before_attention="ln_1", before_mlp=None),
        is_parallel=True,
        has_head_bias=True,
        stored_names=(
            ("model.embed_tokens.", "transformer.wte."),
            ("model.norm.", "transformer.ln_f."),
            ("model.layers.", "transformer.h."),
            (".self_attn.", ".attn."),
            (".o_proj.", ".out_proj."),
        ),
        unread_prefixes=tuple(f"{each}.attn.{mask}" for each in layers for mask in MASKS),
    )
