"""Tiny random checkpoints of models whose chats take audio, and transformers' own forward."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shared.protocol.hearing_card import SAMPLE_RATE
from tests.tiny_decoder import tiny_decoder_config
from tests.tiny_vision import tell_something
from tests.tiny_whisper import Samples

AUDIO_TOKEN_ID = 2  # as no random prompt has it
NUM_MEL_BINS = 16
_WINDOW = 30 * SAMPLE_RATE
_WIDE = {"hidden_size": 8, "intermediate_size": 160, "num_attention_heads": 2}  # 20 are a feature
_DEEP = {"d_model": 16, "encoder_ffn_dim": 24, "encoder_attention_heads": 2}
# By model_type: what the text is of, the encoder, and what the token of audio is called.
EARS: dict[str, tuple[str, dict[str, Any], str]] = {
    "qwen2_audio": ("qwen2", _DEEP | {"encoder_layers": 2}, "audio_token_index"),
    "voxtral": ("llama", _WIDE | {"num_hidden_layers": 2}, "audio_token_id"),
}
PROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": NUM_MEL_BINS,
    "sampling_rate": SAMPLE_RATE,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 30,
}


def save_tiny_ears(path: Path, name: str, audio_token_id: int = AUDIO_TOKEN_ID) -> Path:
    """One of EARS. What its encoder makes is as large as embeddings: it must be heard."""
    from transformers import AutoConfig, AutoModelForMultimodalLM

    text, encoder, token = EARS[name]
    config = AutoConfig.for_model(
        name,
        text_config=tiny_decoder_config() | {"model_type": text, "pad_token_id": None},
        audio_config=encoder | {"num_mel_bins": NUM_MEL_BINS},
        **{token: audio_token_id},
    )
    torch.manual_seed(0)
    auto_model: Any = AutoModelForMultimodalLM
    model = auto_model.from_config(config, dtype=torch.float32)
    tell_something(model)
    model.save_pretrained(path)
    (path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return path


class Reference:
    """transformers' own spectrogram and forward."""

    def __init__(self, path: Path, name: str) -> None:
        from transformers import AutoModelForMultimodalLM, WhisperFeatureExtractor

        auto_model: Any = AutoModelForMultimodalLM
        extractor: Any = WhisperFeatureExtractor
        self._model = auto_model.from_pretrained(path, dtype=torch.float32)
        self._extractor = extractor.from_pretrained(path)
        self._has_mask = name == "qwen2_audio"

    def logits(self, token_ids: Sequence[int], sounds: Sequence[Samples]) -> torch.Tensor:
        """[num_tokens, vocab_size]."""
        heard = {} if not sounds else self._heard(sounds)
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([list(token_ids)]), **heard)
        return torch.Tensor(output.logits[0])

    def _heard(self, sounds: Sequence[Samples]) -> dict[str, torch.Tensor]:
        windows, masks = [], []
        for each in sounds:
            padded = np.pad(each, (0, -len(each) % _WINDOW))
            frames = self._extractor._np_extract_fbank_features(padded[None], "cpu")[0]
            windows += np.split(frames, len(padded) // _WINDOW, axis=1)
            masks.append((np.arange(3000) * 160 < len(each)).astype(np.int64))
        heard = {"input_features": torch.tensor(np.stack(windows), dtype=torch.float32)}
        if self._has_mask:
            heard["feature_attention_mask"] = torch.tensor(np.stack(masks))
        return heard
