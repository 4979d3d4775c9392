"""What a checkpoint's files say about how its model hears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.errors import ConfigError
from shared.protocol.hearing_card import SAMPLE_RATE, WINDOW_FRAMES, HearingCard

HEARING_ARCHITECTURE = "WhisperForConditionalGeneration"
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
    processor = read_json(path / "preprocessor_config.json", dict, {})
    for name, value in _PREPROCESSOR.items():
        if processor.get(name, value) != value:
            raise _wrong(path / "preprocessor_config.json", name, processor[name], f"{value!r}")
    if config.get("max_source_positions", 1500) * 2 != WINDOW_FRAMES:
        told = config["max_source_positions"]
        raise _wrong(path / "config.json", "max_source_positions", told, "1500")
    num_mel_bins = _id(path / "config.json", config, "num_mel_bins")
    if processor.get("feature_size", num_mel_bins) != num_mel_bins:
        told = processor["feature_size"]
        raise _wrong(path / "preprocessor_config.json", "feature_size", told, f"{num_mel_bins}")
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


def _id(file: Path, values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(file, name, value, "a number")
    return value


def _wrong(file: Path, name: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{file}: {name!r} is {value!r}, must be {wanted}")
