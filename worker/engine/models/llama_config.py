"""Reads a Llama config.json, as transformers 4 or 5 writes it; refuses what we do not compute."""

from __future__ import annotations

from shared.errors import ConfigError
from worker.engine.models.model_config import ConfigFile, ModelConfig, RopeConfig

DEFAULT_ROPE_THETA = 10000.0


def llama_config(
    config: ConfigFile, architecture: str, eos_token_ids: tuple[int, ...]
) -> ModelConfig:
    """Raises ConfigError."""
    config.refuse("hidden_act", "silu")
    config.refuse("quantization_config")
    config.refuse("sliding_window")
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(f"{config.path}: {num_heads} heads do not share {num_kv_heads} KV heads")
    attention_bias = config.boolean("attention_bias", default=False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=config.integer("head_dim", hidden_size // num_heads),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        max_context_len=config.integer("max_position_embeddings"),
        rope=_rope_config(config),
        has_qkv_bias=attention_bias,
        has_output_bias=attention_bias,
        has_mlp_bias=config.boolean("mlp_bias", default=False),
        has_tied_embeddings=config.boolean("tie_word_embeddings", default=False),
        stored_dtype=str(config.get("dtype", config.get("torch_dtype", "float32"))),
        eos_token_ids=eos_token_ids,
    )


def _rope_config(config: ConfigFile) -> RopeConfig:
    """transformers 5 puts all into rope_parameters, 4 has rope_theta and rope_scaling."""
    parameters = config.section("rope_parameters") or config.section("rope_scaling")
    top_theta = config.number("rope_theta", DEFAULT_ROPE_THETA)
    if parameters is None:
        return RopeConfig("default", top_theta)
    parameters.refuse("partial_rotary_factor", 1, 1.0)
    theta = parameters.number("rope_theta", top_theta)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    match kind:
        case "default":
            return RopeConfig("default", theta)
        case "linear":
            return RopeConfig("linear", theta, parameters.number("factor"))
        case "llama3":
            return RopeConfig(
                "llama3",
                theta,
                parameters.number("factor"),
                parameters.number("low_freq_factor"),
                parameters.number("high_freq_factor"),
                parameters.integer("original_max_position_embeddings"),
            )
        case _:
            raise ConfigError(f"{config.path}: rope type {kind!r} is not supported")
