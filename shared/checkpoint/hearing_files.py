"""What a checkpoint's files say about how its model hears."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shared.checkpoint.json_file import read_json
from shared.checkpoint.vision.vision_text import text_config
from shared.errors import ConfigError
from shared.protocol.hearing_card import NUM_SOUNDS, SAMPLE_RATE, HearingCard
from shared.protocol.sound_card import SoundCard

HEARING_ARCHITECTURE = "WhisperForConditionalGeneration"
# Whose chats take audio, and what config.json calls the token that stands for it.
SOUND_FAMILIES: Mapping[str, str] = {
    "Qwen2AudioForConditionalGeneration": "audio_token_index",
    "VoxtralForConditionalGeneration": "audio_token_id",
}
_POOLED_FRAMES = 4
# Where config.json does not say.
_TOKEN_IDS = {"audio_token_index": 151646}
_ENCODER = {"num_mel_bins": 128, "hidden_size": 1280, "intermediate_size": 5120}
_PREPROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "sampling_rate": SAMPLE_RATE,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 30,
    "dither": 0.0,
}


def hears(config: dict[str, Any]) -> bool:
    """Whether it is a model of speech."""
    return config.get("architectures") == [HEARING_ARCHITECTURE]


def hearing_card(path: Path, config: dict[str, Any]) -> HearingCard | None:
    """None for a model that takes no audio. Raises ConfigError."""
    if not hears(config):
        return None
    num_mel_bins = _num_mel_bins(path, config)
    file = path / "generation_config.json"
    given = read_json(file, dict)
    no_timestamps_id = _id(file, given, "no_timestamps_token_id")
    languages, tasks = given.get("lang_to_id") or {}, given.get("task_to_id") or {}
    if languages and not {"transcribe", "translate"} <= tasks.keys():
        raise _wrong(file, "task_to_id", tasks, "ids of 'transcribe' and 'translate'")
    return HearingCard(
        num_mel_bins=num_mel_bins,
        start_id=_id(file, config | given, "decoder_start_token_id"),
        end_id=_id(file, config | given, "eos_token_id"),
        no_timestamps_id=no_timestamps_id,
        timestamp_id=no_timestamps_id + 1,
        max_context_len=_id(path / "config.json", config, "max_target_positions"),
        previous_id=given.get("prev_sot_token_id"),
        languages={name.strip("<|>"): token_id for name, token_id in languages.items()},
        transcribe_id=tasks.get("transcribe"),
        translate_id=tasks.get("translate"),
        suppressed_ids=tuple(given.get("suppress_tokens") or ()),
        begin_suppressed_ids=tuple(given.get("begin_suppress_tokens") or ()),
        max_first_tick=given.get("max_initial_timestamp_index"),
    )


def sound_card(path: Path, config: dict[str, Any]) -> SoundCard | None:
    """None for a model whose chats take no audio. Raises ConfigError."""
    (architecture, *_) = config.get("architectures") or [""]
    if architecture not in SOUND_FAMILIES:
        return None
    audio = _ENCODER | (config.get("audio_config") or {})
    file = path / "config.json"
    token_id = _id(file, _TOKEN_IDS | config, SOUND_FAMILIES[architecture])
    if token_id >= (vocab_size := text_config(config)["vocab_size"]):
        raise _wrong(file, SOUND_FAMILIES[architecture], token_id, f"below vocab_size={vocab_size}")
    card = SoundCard(token_id, _num_mel_bins(path, audio), _POOLED_FRAMES)
    if architecture != "VoxtralForConditionalGeneration":
        return msgspec.structs.replace(card, max_windows=1)
    stacked = audio["intermediate_size"] / audio["hidden_size"]  # neighbours that become a feature
    if not stacked.is_integer() or NUM_SOUNDS % stacked:
        raise _wrong(file, "intermediate_size", audio["intermediate_size"], "of whole sounds")
    return msgspec.structs.replace(card, token_frames=2 * int(stacked), hears_silence=True)


def _num_mel_bins(path: Path, encoder: dict[str, Any]) -> int:
    """The mel bins of an encoder that hears as Whisper's does. Raises ConfigError."""
    nested = read_json(path / "processor_config.json", dict, {}).get("feature_extractor")
    file = path / ("processor_config.json" if nested else "preprocessor_config.json")
    processor = nested or read_json(file, dict, {})
    for name, value in _PREPROCESSOR.items():
        if processor.get(name, value) != value:
            raise _wrong(file, name, processor[name], f"{value!r}")
    if encoder.get("max_source_positions", NUM_SOUNDS) != NUM_SOUNDS:
        told = encoder["max_source_positions"]
        raise _wrong(path / "config.json", "max_source_positions", told, f"{NUM_SOUNDS}")
    num_mel_bins = _id(path / "config.json", encoder, "num_mel_bins")
    if processor.get("feature_size", num_mel_bins) != num_mel_bins:
        raise _wrong(file, "feature_size", processor["feature_size"], f"{num_mel_bins}")
    return num_mel_bins


def _id(file: Path, values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(file, name, value, "a number")
    return value


def _wrong(file: Path, name: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{file}: {name!r} is {value!r}, must be {wanted}")
