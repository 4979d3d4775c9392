"""OLMo 2, 3 and Hybrid: norms behind attention and MLP, and of all queries, or keys, at once."""

from __future__ import annotations

from dataclasses import replace

from worker.engine.models.decoder_config import (
    DecoderConfig,
    decoder_config,
    same_window,
    windows_of_types,
    with_layer_ropes,
    with_recurrent_layers,
)
from worker.engine.models.families.qwen3_5 import delta_net_config
from worker.engine.models.layer_config import (
    LLAMA_PLACES,
    POST_NORMS,
    HeadNormConfig,
    MlpConfig,
    activation,
)
from worker.engine.models.model_config import ConfigFile
from worker.engine.models.recurrent.recurrent_config import layers_that_attend
from worker.engine.models.rope_config import RopeConfig, rope_config, ropes_by_layer

_GATED_NORM_EPS = 1e-5  # whatever the others have
_HYBRID_NAMES = (
    (".input_layernorm.", ".attention_layer_norm."),
    (".post_attention_layernorm.", ".feedforward_layer_norm."),
    (".recurrent.norm.", ".linear_attn.o_norm."),
    (".recurrent.out_proj.", ".linear_attn.o_proj."),
    (".recurrent.", ".linear_attn."),
)


def olmo2_config(config: ConfigFile) -> DecoderConfig:
    """The second. Raises ConfigError, as the other readers do."""
    windows = same_window(config, None)
    return _olmo(config, windows, rope_config(config))


def olmo3_config(config: ConfigFile) -> DecoderConfig:
    """The third: windows, and a rope for each type of layer."""
    ropes = ropes_by_layer(config)
    window = config.optional_integer("sliding_window", None)
    windows = windows_of_types(config, config.get("layer_types", None), window)
    model = _olmo(config, windows, ropes.main)
    return with_layer_ropes(config, model, ropes.layers)


def olmo_hybrid_config(config: ConfigFile) -> DecoderConfig:
    """Gated delta nets in most layers, with norms before them; released ones do not rotate."""
    model = _olmo(config, same_window(config, None), rope_config(config))
    parameters = config.section("rope_parameters")
    rotates = (
        parameters is None
        or "rope_theta" not in parameters
        or parameters.optional_number("rope_theta") is not None
    )
    model = replace(
        model,
        norm_places=LLAMA_PLACES,
        attention_norm_places=model.norm_places,
        layer_ropes=model.layer_ropes if rotates else (None,) * model.num_layers,
        stored_names=_HYBRID_NAMES,
    )
    turns = config.boolean("linear_allow_neg_eigval", default=True)
    delta_net = replace(
        delta_net_config(config, model.hidden_size, _GATED_NORM_EPS),
        stored="apart",
        max_rate=2.0 if turns else 1.0,
    )
    attends = layers_that_attend(config, model.num_layers, "linear_attention")
    return with_recurrent_layers(model, [None if each else delta_net for each in attends])


def _olmo(config: ConfigFile, windows: tuple[int | None, ...], rope: RopeConfig) -> DecoderConfig:
    model = decoder_config(
        config,
        windows=windows,
        has_attention_bias=config.boolean("attention_bias", default=False),
        rope=rope,
        mlp=MlpConfig(activation=activation(config)),
    )
    return replace(model, norm_places=POST_NORMS, head_norm=HeadNormConfig(scope="whole"))
