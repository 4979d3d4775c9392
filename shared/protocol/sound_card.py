"""How a model hears what is said in a chat: what audio is made into, and the tokens for it."""

from __future__ import annotations

import msgspec

from shared.protocol.hearing_card import WINDOW_FRAMES

SOUND_LEVEL = 4  # the feature level of prompts with audio


class SoundCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model hears windows of a spectrogram, each on its own, as it sees an image."""

    token_id: (
        int  # one stands in the rendered chat for audio, and one for each feature in the prompt
    )
    num_mel_bins: int
    token_frames: int  # of a spectrogram, that become a feature
    hears_silence: bool = False  # that fills up the last window; else features end with the sound
    max_windows: int = 0  # of one audio; 0: any number

    def num_tokens(self, num_frames: int) -> int:
        """That stand for a window with so many frames of sound."""
        heard = WINDOW_FRAMES if self.hears_silence else num_frames
        return (heard + 1) // self.token_frames
