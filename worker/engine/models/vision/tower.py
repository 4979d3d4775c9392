"""What sees or hears, beside a text model that is read on its own: computed by transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from shared.checkpoint.vision.vision_text import is_of_tower
from shared.checkpoint.weights.plain_tensors import check_plain
from shared.errors import ConfigError
from shared.protocol.hearing_card import WINDOW_FRAMES
from shared.protocol.image_sizes import PixelSize
from shared.protocol.sight_card import SightCard
from shared.protocol.sound_card import SoundCard
from worker.engine.formats.safetensors_files import SafetensorsFiles
from worker.engine.formats.stored_checkpoint import check_unread
from worker.engine.models.dummy_weights import fill_parameters
from worker.engine.models.speech.sound_towers import qwen2_audio_features, voxtral_features
from worker.engine.models.transformers_config import MODEL_ERRORS, read_hf_config
from worker.engine.models.vision.gemma3 import gemma3_features
from worker.engine.models.vision.gemma4 import gemma4_features, gemma4_unified_features
from worker.engine.models.vision.image_norm import ImageNorm
from worker.engine.models.vision.mistral3 import mistral3_features
from worker.engine.models.vision.qwen_vl import qwen3_vl_features, qwen_vl_features
from worker.engine.models.vision.tiled import (
    anyres_features,
    idefics3_features,
    internvl_features,
    llama4_features,
)
from worker.engine.models.vision.tower_config import TowerConfig
from worker.engine_link.engine_config import LoadFormat

Features: TypeAlias = Callable[[Any, torch.Tensor, PixelSize], torch.Tensor]
SoundFeatures: TypeAlias = Callable[[Any, torch.Tensor, int], torch.Tensor]

# Of a model whose text has no layers, the pixels [3, height, width] of an image, and its size:
# `VisionTower` has the shape.
TOWERS: Mapping[str, Features] = {
    "Gemma3ForConditionalGeneration": gemma3_features,
    "Gemma4ForConditionalGeneration": gemma4_features,
    "Gemma4UnifiedForConditionalGeneration": gemma4_unified_features,
    "Idefics3ForConditionalGeneration": idefics3_features,
    "InternVLForConditionalGeneration": internvl_features,
    "Llama4ForConditionalGeneration": llama4_features,
    "LlavaNextForConditionalGeneration": anyres_features,
    "LlavaOnevisionForConditionalGeneration": anyres_features,
    "Mistral3ForConditionalGeneration": mistral3_features,
    "Qwen2VLForConditionalGeneration": qwen_vl_features,
    "Qwen2_5_VLForConditionalGeneration": qwen_vl_features,
    "Qwen3VLForConditionalGeneration": qwen3_vl_features,
    "Qwen3VLMoeForConditionalGeneration": qwen3_vl_features,
    "Qwen3_5ForConditionalGeneration": qwen_vl_features,
    "Qwen3_5MoeForConditionalGeneration": qwen_vl_features,
    "SmolVLMForConditionalGeneration": idefics3_features,
}
# Of the same, a window [1, num_mel_bins, WINDOW_FRAMES], and how many of its frames are no silence.
EARS: Mapping[str, SoundFeatures] = {
    "Qwen2AudioForConditionalGeneration": qwen2_audio_features,
    "VoxtralForConditionalGeneration": voxtral_features,
}
# In which the scaled colours are rounded, as the model was trained; else float32.
PIXEL_DTYPES = {"Llama4ForConditionalGeneration": torch.bfloat16}
CPU = torch.device("cpu")
_NUM_WORDS = 8  # in the embeddings of a text that nobody reads
_QUANTIZED = "in a tower: only towers of 16 or 32 bits are supported"


class Tower:
    """Sees an image or hears a window at a time: what it makes of it depends on nothing else."""

    def __init__(
        self, model: Any, architecture: str, sight: SightCard | None, device: torch.device
    ) -> None:
        self._model = model.to(device)
        self._architecture = architecture
        if sight is not None:
            dtype = PIXEL_DTYPES.get(architecture, torch.float32)
            self._norm = ImageNorm.of(sight, device, dtype)
            self._video_norm = ImageNorm.of(sight.video or sight, device, dtype)

    def image_features(
        self, pixels: torch.Tensor, size: PixelSize, num_frames: int = 0
    ) -> torch.Tensor:
        """[height, width, 3] uint8 -> [1 + num_deep, num_features, hidden_size]."""
        norm = self._video_norm if num_frames else self._norm
        image = norm.apply(pixels).to(self._model.dtype)
        return TOWERS[self._architecture](self._model, image, size)

    def sound_features(self, frames: torch.Tensor, num_frames: int) -> torch.Tensor:
        """[WINDOW_FRAMES, num_mel_bins] float32 -> [1, num_features, hidden_size]."""
        window = frames.T[None].to(self._model.dtype)
        return EARS[self._architecture](self._model, window, num_frames)


def read_tower_config(model_path: Path, architecture: str) -> TowerConfig:
    """Raises ConfigError for one that cannot be made."""
    config = _without_text(read_hf_config(model_path), architecture)
    try:
        with torch.device("meta"):
            model = _make(architecture, config, torch.bfloat16)
    except MODEL_ERRORS as exc:
        raise ConfigError(f"{architecture}: its tower cannot be made: {exc}") from exc
    num_parameters = sum(each.numel() for each in _parts(model)[0].values())
    return TowerConfig(architecture, config, num_parameters)


def load_tower(
    config: TowerConfig,
    sight: SightCard | None,
    sound: SoundCard | None,
    model_path: Path,
    load_format: LoadFormat,
    dtype: torch.dtype,
    device: torch.device = CPU,
) -> Tower:
    """Raises ConfigError for a checkpoint that does not fit its configuration."""
    if load_format == "dummy":
        model = _make(config.architecture, config.hf_config, dtype)
        fill_parameters(model, lambda _: None)
    else:
        model = _read(config, model_path, dtype)
    tower = Tower(model, config.architecture, sight, device)
    if sight is not None:
        _check(tower, sight, device)
    if sound is not None:
        _check_ears(tower, sound, device)
    return tower


def _read(config: TowerConfig, model_path: Path, dtype: torch.dtype) -> Any:
    with SafetensorsFiles(model_path) as files:
        hears = config.architecture in EARS
        headers = {
            name: each for name, each in files.headers.items() if is_of_tower(name, hears=hears)
        }
        check_plain(headers, files.place, _QUANTIZED)
        try:
            model, loading = _class(config.architecture).from_pretrained(
                None,
                state_dict={name: files.get(name) for name in headers} | _words(config),
                config=copy.deepcopy(config.hf_config),
                dtype=dtype,
                attn_implementation="sdpa",
                local_files_only=True,
                output_loading_info=True,
            )
        except MODEL_ERRORS as exc:
            raise ConfigError(f"cannot load the tower of {model_path}: {exc}") from exc
        check_unread(files, sorted(loading["unexpected_keys"]))
    missing = sorted(loading["missing_keys"] & _parts(model)[0].keys())
    if missing:
        raise ConfigError(f"the checkpoint in {model_path} has no tensor {missing[0]!r}")
    return model.eval()


def _without_text(hf_config: Any, architecture: str) -> Any:
    """The same without its text model, so that only what is used takes memory."""
    config = copy.deepcopy(hf_config)
    if hasattr(config, "audio_config") and architecture not in EARS:
        config.audio_config = None
    text = config.get_text_config()
    text.num_hidden_layers = 0
    text.layer_types = []
    text.hidden_size_per_layer_input = 0
    text.vocab_size = _NUM_WORDS
    text.pad_token_id = None
    for each in (config, text):
        if hasattr(each, "quantization_config"):
            del each.quantization_config
    return config


def _class(architecture: str) -> Any:
    import transformers

    return getattr(transformers, architecture)


def _make(architecture: str, hf_config: Any, dtype: torch.dtype) -> Any:
    """A tower with weights that mean nothing, on the device of the context."""
    config = copy.deepcopy(hf_config)
    model = _class(architecture)._from_config(config, attn_implementation="sdpa", dtype=dtype)
    return model.eval()


def _words(config: TowerConfig) -> dict[str, torch.Tensor]:
    """In the place of the text's tensors, which would be missed."""
    with torch.device("meta"):
        model = _make(config.architecture, config.hf_config, torch.bfloat16)
    return {name: torch.zeros(each.shape) for name, each in _parts(model)[1].items()}


def _parts(model: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What is stored of the tower, and of the text."""
    text = {
        id(each)
        for part in (model.get_decoder(), model.get_output_embeddings())
        for each in part.state_dict(keep_vars=True).values()
    }
    stored: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    reading = {name: each for name, each in stored.items() if id(each) in text}
    return {name: each for name, each in stored.items() if name not in reading}, reading


def _check(tower: Tower, sight: SightCard, device: torch.device) -> None:
    """Raises ConfigError when an image takes other tokens than its card says."""
    size: PixelSize = sight.size.least
    grid = sight.size.grid(size)
    assert grid is not None, "it is a size of its own"
    with torch.inference_mode():
        array = sight.size.array_size(size)
        pixels = torch.zeros(*array, 3, dtype=torch.uint8).to(device)
        features = tower.image_features(pixels, size)
    if features.shape[1] != grid.num_features:
        raise ConfigError(
            f"its vision tower makes {features.shape[1]} tokens of an image, and its files say "
            f"{grid.num_features}"
        )


def _check_ears(tower: Tower, sound: SoundCard, device: torch.device) -> None:
    """Raises ConfigError when a window takes other tokens than its card says."""
    with torch.inference_mode():
        silence = torch.zeros(WINDOW_FRAMES, sound.num_mel_bins, device=device)
        features = tower.sound_features(silence, WINDOW_FRAMES)
    if features.shape[1] != sound.num_tokens(WINDOW_FRAMES):
        raise ConfigError(
            f"its encoder makes {features.shape[1]} tokens of {WINDOW_FRAMES} frames of audio, and "
            f"its files say {sound.num_tokens(WINDOW_FRAMES)}"
        )
