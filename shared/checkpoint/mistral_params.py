"""Mistral's params.json in the words of Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.errors import ConfigError

PARAMS_FILE = "params.json"
# Where the file does not say, as Mistral's own code and vLLM have it.
_MAX_POSITIONS, _THETA, _TOWER_THETA, _NORM_EPS = 131072, 1e6, 1e4, 1e-5
_BOS_ID, _EOS_ID, _IMAGE_TOKEN_ID = 1, 2, 10  # of all their tokenizers
_SIZES = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
}
_TOWER_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_channels", "image_size", "patch_size"),
)
_SHOWN = 100  # characters of a value
_QUANTIZED = {"qformat_weight": ("fp8_e4m3",), "qscheme_act": ("TENSOR", "NO_SCALES", None)}


class _Values:
    """An object of the file: what nobody takes is refused."""

    def __init__(self, place: str, values: Mapping[str, Any]) -> None:
        self.place = place
        self._left = dict(values)

    def take(self, name: str, default: Any = None) -> Any:
        """A null counts as missing."""
        value = self._left.pop(name, None)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        value = self.take(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{self.place}: {name!r} must be a positive integer, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.take(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ConfigError(f"{self.place}: {name!r} must be a positive number, not {value!r}")
        return float(value)

    def section(self, name: str) -> _Values | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConfigError(f"{self.place}: {name!r} must be an object, not {value!r}")
        return _Values(f"{self.place}: {name}", value)

    def allow(self, name: str, *allowed: Any) -> None:
        """None of them stands for what is missing."""
        value = self.take(name)
        if value not in allowed and value is not None:
            raise self._unsupported(name, value)

    def finish(self) -> None:
        """Raises ConfigError for what nobody took; what begins with "_" they have put aside."""
        for name, value in self._left.items():
            if value is not None and not name.startswith("_"):
                raise self._unsupported(name, value)

    def refuse(self, name: str, why: str) -> None:
        """Raises ConfigError for one that has it."""
        value = self.take(name)
        if value is not None:
            raise self._unsupported(name, value, why)

    def _unsupported(self, name: str, value: Any, why: str = "") -> ConfigError:
        told = f"{self.place}: {name}={repr(value)[:_SHOWN]} is not supported"
        return ConfigError(f"{told}: {why}" if why else told)


def hugging_face_config(path: Path, dtype: str) -> dict[str, Any]:
    """config.json of a folder with params.json, whose weights are in `dtype`. Pixtral, whose images
    are not merged, is the text model that it has.

    Raises ConfigError for what is not known here.
    """
    params = _Values(str(path / PARAMS_FILE), read_json(path / PARAMS_FILE, dict))
    params.refuse("kv_lora_rank", "it attends over latents, as Mistral Large 3 and Small 4 do")
    for name in ("dtype", "torch_dtype", "max_batch_size"):
        params.take(name)
    params.allow("model_type", "transformer")
    params.allow("causal", True)
    config = _text_config(params) | {"dtype": dtype}
    quantization = params.section("quantization")
    if quantization is not None:
        for name, allowed in _QUANTIZED.items():
            quantization.allow(name, *allowed)
        quantization.finish()
        config |= {"quantization_config": {"quant_method": "fp8"}}
    vision = params.section("vision_encoder")
    params.finish()
    return config if vision is None else _seeing(config, vision)


def image_processor(config: Mapping[str, Any]) -> dict[str, Any]:
    """preprocessor_config.json of a model that sees."""
    vision = config["vision_config"]
    return {
        "image_processor_type": "PixtralImageProcessor",
        "patch_size": vision["patch_size"],
        "size": {"longest_edge": vision["image_size"]},
    }


def _text_config(params: _Values) -> dict[str, Any]:
    config: dict[str, Any] = {ours: params.size(theirs) for theirs, ours in _SIZES.items()}
    max_positions = params.size("max_seq_len", _MAX_POSITIONS)
    config |= {
        "rms_norm_eps": params.number("norm_eps", _NORM_EPS),
        "hidden_act": params.take("activation", "silu"),
        "tie_word_embeddings": params.take("tied_embeddings", False),
        "max_position_embeddings": params.size("max_position_embeddings", max_positions),
        "bos_token_id": _BOS_ID,
        "eos_token_id": _EOS_ID,
        "rope_parameters": _rope(params),
    }
    config |= _windows(params, config["num_hidden_layers"])
    experts = params.section("moe")
    if experts is not None:
        config |= _family("mixtral", "MixtralForCausalLM") | {
            "num_local_experts": experts.size("num_experts"),
            "num_experts_per_tok": experts.size("num_experts_per_tok"),
        }
        experts.finish()
    elif "llama_4_scaling_beta" in config["rope_parameters"]:
        config |= _family("ministral3", "Ministral3ForCausalLM")
    elif "layer_types" in config:
        config |= _family("ministral", "MinistralForCausalLM")
    else:
        config |= _family("mistral", "MistralForCausalLM")
    return config


def _family(model_type: str, architecture: str) -> dict[str, Any]:
    return {"model_type": model_type, "architectures": [architecture]}


def _rope(params: _Values) -> dict[str, Any]:
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": params.number("rope_theta", _THETA),
    }
    yarn, scaling = params.section("yarn"), params.section("llama_4_scaling")
    if yarn is not None:
        rope |= {
            "rope_type": "yarn",
            "factor": yarn.number("factor"),
            "original_max_position_embeddings": yarn.size("original_max_position_embeddings"),
            "beta_fast": yarn.number("beta", 32.0),
            "beta_slow": yarn.number("alpha", 1.0),
        }
        if yarn.take("apply_scale") is False:
            rope["attention_factor"] = 1.0
        yarn.finish()
    if scaling is not None:
        rope["llama_4_scaling_beta"] = scaling.number("beta")
        step = scaling.size("original_max_position_embeddings")
        if rope.setdefault("original_max_position_embeddings", step) != step:
            raise ConfigError(
                f"{scaling.place}: original_max_position_embeddings={step} is not that of yarn, "
                f"{rope['original_max_position_embeddings']}: not supported"
            )
        scaling.finish()
    return rope


def _windows(params: _Values, num_layers: int) -> dict[str, Any]:
    """One for all layers, or a list that is repeated over them; null: none."""
    given = params.take("sliding_window")
    windows = given if isinstance(given, list) else [given]
    sizes = {int(each) for each in windows if each is not None and str(each).isdecimal()}
    told = [each for each in windows if each is not None]
    if not windows or num_layers % len(windows) or len(sizes) != min(1, len(told)):
        raise ConfigError(f"{params.place}: sliding_window={given!r} is not supported")
    config: dict[str, Any] = {"sliding_window": next(iter(sizes), None)}
    if sizes and None in windows:
        kinds = ["full_attention" if each is None else "sliding_attention" for each in windows]
        config["layer_types"] = kinds * (num_layers // len(windows))
    return config


def _seeing(config: dict[str, Any], vision: _Values) -> dict[str, Any]:
    tower = {name: vision.size(name) for name in _TOWER_SIZES if name != "num_channels"}
    tower["num_channels"] = vision.size("num_channels", 3)
    rope_theta = vision.number("rope_theta", _TOWER_THETA)
    merge_size = vision.take("spatial_merge_size")
    has_bias = vision.take("adapter_bias", False)
    token_id = vision.take("image_token_id", _IMAGE_TOKEN_ID)
    edge = vision.size("max_image_size", tower["image_size"])
    for name in ("image_break_token_id", "image_end_token_id"):  # the tokenizer names them
        vision.take(name)
    if merge_size is None:
        return config
    vision.allow("mm_projector_id", "patch_merge")
    vision.allow("add_pre_mm_projector_layer_norm", True)
    vision.finish()
    return {
        **_family("mistral3", "Mistral3ForConditionalGeneration"),
        **{name: config.pop(name) for name in ("quantization_config",) if name in config},
        "text_config": config,
        "vision_config": tower
        | {
            "model_type": "pixtral",
            "hidden_act": "silu",
            "rope_theta": rope_theta,
            "image_size": edge,  # of its table of positions, which are the same in any
        },
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": has_bias,
        "vision_feature_layer": -1,
        "image_token_index": token_id,
        "spatial_merge_size": merge_size,
        "tie_word_embeddings": config["tie_word_embeddings"],
        "dtype": config["dtype"],
    }
