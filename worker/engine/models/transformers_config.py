"""What a model of transformers is like: asked of its code, before any weight is read."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError

from shared.checkpoint.json_file import read_json
from shared.checkpoint.model_files import weight_files
from shared.checkpoint.vision.vision_families import WHOLE_FAMILIES, sight_card
from shared.checkpoint.vision.vision_text import TEXT_ARCHITECTURES, text_tensor_name
from shared.errors import ConfigError
from shared.protocol.sight_card import SightCard
from worker.engine.formats.safetensors_files import SafetensorsFiles
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.models.expert_kinds import num_expert_values
from worker.engine.models.model_config import ModelConfig, is_classifier
from worker.engine.models.transformers_architectures import REFUSED, TESTED_ARCHITECTURES
from worker.engine.models.transformers_attention import (
    ATTENTION_NAME,
    TrialStep,
    register_attention,
)

NUM_TRIAL_TOKENS = 8
# Types of models, or their architectures, and the types that transformers has for the same: their
# makers' code is not run.
SAME_TYPES = {
    "kimi_k2": "deepseek_v3",
    "MiniMaxM1ForCausalLM": "minimax",
    "MiniMaxText01ForCausalLM": "minimax",
}
# Types of text models whose axes of positions take turns, whatever config.json says.
_INTERLEAVED = ("qwen3_vl", "qwen3_5")
KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}

# What a foreign model may raise when it is made or called in a way that it was not made for.
MODEL_ERRORS = (
    AssertionError,
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
    NotImplementedError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig(ModelConfig):
    """Any decoder that transformers computes, and whose attention we can replace."""

    hf_config: Any


def read_hf_config(model_path: Path) -> Any:
    """config.json as transformers understands it. Raises ConfigError."""
    from transformers import AutoConfig

    values = read_json(model_path / "config.json", dict)
    names = (values.pop("model_type", None), *(values.get("architectures") or ()))
    same_type = next((SAME_TYPES[each] for each in map(str, names) if each in SAME_TYPES), None)
    try:
        if same_type is not None:
            values.pop("auto_map", None)  # where their makers' code is
            return AutoConfig.for_model(same_type, **values)
        return AutoConfig.from_pretrained(model_path, local_files_only=True)
    except MODEL_ERRORS as exc:
        raise ConfigError(f"{model_path} is not a model that transformers knows: {exc}") from exc


def read_text_config(model_path: Path, architecture: str) -> Any:
    """The config of the text model alone in a checkpoint that reads images: what transformers would
    make it of, under the name of its own architecture. Raises ConfigError.
    """
    hf_config = read_hf_config(model_path)
    known = TEXT_ARCHITECTURES[architecture]
    text_config = hf_config.get_text_config()
    if text_config.model_type not in known:
        raise ConfigError(
            f"{architecture} with a text model of type {text_config.model_type!r} is not supported;"
            f" supported: {', '.join(known)}"
        )
    text_config.architectures = [known[text_config.model_type]]
    text_config.tie_word_embeddings = _has_tied_embeddings(model_path, text_config)
    text_config.dtype = text_config.dtype or hf_config.dtype
    if text_config.model_type.startswith(_INTERLEAVED) and text_config.rope_parameters:
        text_config.rope_parameters["mrope_interleaved"] = True
    return text_config


def _has_tied_embeddings(model_path: Path, text_config: Any) -> bool:
    """As config.json says; where it does not, by whether the weights have a head.

    The defaults of transformers' classes are no help: those of whole and text contradict each
    other. Raises ConfigError.
    """
    told = read_json(model_path / "config.json", dict).get("tie_word_embeddings")
    if isinstance(told, bool):
        return told
    if not weight_files(model_path):
        return bool(text_config.tie_word_embeddings)
    with SafetensorsFiles(model_path) as files:
        return "lm_head.weight" not in map(text_tensor_name, files.headers)


def read_transformers_config(
    model_path: Path,
    architecture: str,
    eos_token_ids: tuple[int, ...],
    hf_config: Any = None,
) -> TransformersConfig:
    """The config of `hf_config`, or of config.json. Raises ConfigError if it cannot be served."""
    if architecture in REFUSED:
        raise ConfigError(f"{architecture} is not supported: {REFUSED[architecture]}")
    hf_config = hf_config or read_hf_config(model_path)
    forget_quantization(hf_config)
    sees = architecture in WHOLE_FAMILIES
    _refuse(hf_config, architecture, sees=sees)
    text_config = hf_config.get_text_config()
    max_positions = int(text_config.max_position_embeddings)
    sight = sight_card(model_path, read_json(model_path / "config.json", dict)) if sees else None
    try:
        with torch.device("meta"):
            model = make_model(copy.deepcopy(hf_config), torch.bfloat16)
        if type(model).__name__ != architecture:
            raise ConfigError(
                f"{architecture} is not the text decoder of model_type {hf_config.model_type!r}: "
                "not supported"
            )
        forget_padding(model)
        choose_experts(model, "batched_mm")  # the one without loops over data
        fix_rope(model, max_positions)  # which would look at the positions
        layers = _tried(model, architecture)
        if sight is not None:
            _check_sight(model, sight)
    except MODEL_ERRORS as exc:
        raise ConfigError(
            f"{architecture} cannot be served: transformers' code fails with this config.json "
            f"({type(exc).__name__}: {exc})"
        ) from exc
    if architecture not in TESTED_ARCHITECTURES | WHOLE_FAMILIES.keys():
        log.warning("untested family: no test compares %s with transformers", architecture)
    return TransformersConfig(
        architecture=architecture,
        vocab_size=text_config.vocab_size,
        hidden_size=text_config.hidden_size,
        num_parameters=sum(each.numel() for each in model.parameters()),
        attention_layers=layers,
        max_context_len=max_positions,
        max_context_limit=_max_context_limit(text_config, max_positions),
        stored_dtype=str(hf_config.dtype or "float32").removeprefix("torch."),
        eos_token_ids=eos_token_ids,
        sight=sight,
        hf_config=hf_config,
        num_expert_values=num_expert_values(model),
    )


def forget_quantization(hf_config: Any) -> None:
    """Its modules get dense weights, whatever they are stored in."""
    for each in (hf_config, hf_config.get_text_config()):
        if hasattr(each, "quantization_config"):
            del each.quantization_config


def auto_model(hf_config: Any) -> Any:
    """The class of transformers that makes such models."""
    import transformers

    if sees_images(hf_config):
        return transformers.AutoModelForImageTextToText
    if is_classifier(str(hf_config.architectures[0])):
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForCausalLM


def sees_images(hf_config: Any) -> bool:
    """Whether a vision tower comes with it."""
    return getattr(hf_config, "vision_config", None) is not None


def attention_names(hf_config: Any) -> str | dict[str, str]:
    """Ours for the decoder; a vision tower has no keys and values to keep."""
    if sees_images(hf_config):
        return {"": "sdpa", "text_config": ATTENTION_NAME, "vision_config": "sdpa"}
    return ATTENTION_NAME


def make_model(hf_config: Any, dtype: torch.dtype) -> Any:
    """A model with weights that mean nothing, on the device of the context."""
    register_attention()
    model = auto_model(hf_config).from_config(
        hf_config, attn_implementation=attention_names(hf_config), dtype=dtype
    )
    return model.eval()


def forget_padding(model: Any) -> None:
    """No input of ours is padded. A model that knows of padding would look for it in the values of
    each step: that warns of nothing here, and on a GPU it waits.
    """
    model.get_decoder().config.pad_token_id = None


def choose_experts(model: Any, implementation: str) -> None:
    """How mixtures of experts are computed, where the model lets us choose."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation(implementation)


class Trial(NamedTuple):
    """What a forward pass without attention has told."""

    layers: tuple[AttentionLayer, ...]
    keys: tuple[torch.Tensor, ...]  # [NUM_TRIAL_TOKENS, num_kv_heads, head_dim] each


def trial(model: Any, first_position: int = 0) -> Trial:
    """Raises ConfigError when something other than our attention joins the tokens."""
    step = TrialStep()
    device = next(model.parameters()).device
    positions = torch.arange(first_position, first_position + NUM_TRIAL_TOKENS, device=device)
    with torch.inference_mode():
        model.get_decoder()(
            # Not one id for all of them: it might be the padding's, which may be embedded as zeros.
            input_ids=torch.arange(NUM_TRIAL_TOKENS, device=device)[None],
            position_ids=positions[None],
            use_cache=False,
            jetflock_step=step,
        )
    num_layers = model.config.get_text_config().num_hidden_layers
    if sorted(step.layers) != list(range(num_layers)):
        raise ConfigError(
            f"{len(step.layers)} of {num_layers} layers have an attention that can be replaced: "
            "not supported"
        )
    layers = tuple(step.layers[idx] for idx in range(num_layers))
    return Trial(layers, tuple(step.keys[idx] for idx in range(num_layers)))


def _tried(model: Any, architecture: str) -> tuple[AttentionLayer, ...]:
    """Raises ConfigError, with its name, as `trial` does."""
    try:
        return trial(model).layers
    except ConfigError as exc:
        raise ConfigError(f"{architecture}: {exc}") from exc


def _check_sight(model: Any, sight: SightCard) -> None:
    """Raises ConfigError when an image takes other tokens than its card says."""
    size = sight.size.least
    grid = sight.size.grid(size)
    assert grid is not None, "it is a size of its own"
    device = next(model.parameters()).device
    pixels = torch.zeros(1, 3, *size, dtype=model.dtype, device=device)
    with torch.inference_mode():
        (features,) = model.get_image_features(pixel_values=pixels).pooler_output
    if len(features) != grid.num_features:
        raise ConfigError(
            f"its vision tower makes {len(features)} tokens of an image, and its files say "
            f"{grid.num_features}"
        )


def _refuse(hf_config: Any, architecture: str, *, sees: bool) -> None:
    for name in ("audio_config",) if sees else ("vision_config", "audio_config"):
        if getattr(hf_config, name, None) is not None:
            raise ConfigError(f"{architecture} has a {name}: only text models are supported")
    if getattr(hf_config, "is_encoder_decoder", False):
        raise ConfigError(f"{architecture} has an encoder: only decoders are supported")
    hf_config = hf_config.get_text_config()
    if getattr(hf_config, "use_bidirectional_attention", None):
        raise ConfigError(f"{architecture}: use_bidirectional_attention is not supported")
    unknown = set(getattr(hf_config, "layer_types", None) or ()) - KNOWN_LAYER_TYPES
    if unknown:
        named = ", ".join(sorted(map(str, unknown)))
        raise ConfigError(f"{architecture} has layers of type {named}: not supported")
    if not isinstance(getattr(hf_config, "max_position_embeddings", None), int):
        raise ConfigError(f"{architecture}: config.json names no max_position_embeddings")


def _max_context_limit(hf_config: Any, max_positions: int) -> int:
    """Two ropes serve texts beyond the limit that config.json names."""
    parameters = getattr(hf_config, "rope_parameters", None) or {}
    match parameters.get("rope_type"):
        case "dynamic":
            trained = max_positions
        case "yarn":
            trained = parameters["original_max_position_embeddings"]
        case _:
            return max_positions
    return max(max_positions, int(parameters["factor"] * trained))


def fix_rope(model: Any, max_context_len: int) -> None:
    """Frequencies that follow the length of the text become those of the longest text.

    Keys that are cached under one set of frequencies cannot be read under another.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds = kind if isinstance(kind, dict) else {None: kind}
        for layer_type, each in kinds.items():
            if each not in ("dynamic", "longrope"):
                continue
            named = {} if layer_type is None else {"layer_type": layer_type}
            frequencies, scaling = ROPE_INIT_FUNCTIONS[each](
                module.config, torch.device("cpu"), seq_len=max_context_len, **named
            )
            prefix = "" if layer_type is None else f"{layer_type}_"
            getattr(module, prefix + "inv_freq").copy_(frequencies)
            setattr(module, prefix + "attention_scaling", scaling)
            kinds[layer_type] = "fixed"  # transformers' code updates the kinds that it knows
        if kind is not None:
            module.rope_type = kinds if isinstance(kind, dict) else kinds[None]
