"""The encoders of models whose chats take audio: what transformers makes of a window."""

from __future__ import annotations

from typing import Any

import torch

_STRIDE = 2  # of the convolutions


def qwen2_audio_features(model: Any, window: torch.Tensor, num_frames: int) -> torch.Tensor:
    """[1, num_mel_bins, WINDOW_FRAMES] -> [1, num_features, hidden_size]: no sound attends to the
    silence behind it, of which nothing is told.
    """
    places = torch.arange(window.shape[-1] // _STRIDE, device=window.device)
    is_heard = (places < -(-num_frames // _STRIDE))[None, None, None]
    sounds = model.model.audio_tower(window, attention_mask=is_heard).last_hidden_state
    num_features = (num_frames + 1) // (2 * _STRIDE)
    return torch.Tensor(model.model.multi_modal_projector(sounds[:, :num_features]))


def voxtral_features(model: Any, window: torch.Tensor, _: int) -> torch.Tensor:
    """[1, num_mel_bins, WINDOW_FRAMES] -> [1, num_features, hidden_size]: neighbours are one."""
    return torch.Tensor(model.get_audio_features(window).pooler_output[None])
