"""The spectrogram that Whisper hears: logarithms of energies by mel, of samples at its rate."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from shared.protocol.hearing_card import SAMPLE_RATE

HOP = 160  # samples between frames
_SIZE = 400  # samples of a frame
_BLOCK_FRAMES = 4096  # that are computed at once
_LEAST = 1e-10
_RANGE = 8.0  # below the loudest, in powers of ten
_SILENT_FRAMES = 4  # behind the last: in the last of these nothing is heard
_NUM_ZEROS = 32  # crossings of the sinc, on each side
_WINDOW = (0.35875, 0.48829, 0.14128, 0.01168)  # Blackman and Harris: the rest is 92 dB down
_PASSED = 0.95  # of what the lower rate can carry
_BLOCK = 1 << 16  # outputs that are computed at once, at most


def num_frames_of(num_samples: int) -> int:
    """Without the silence behind them."""
    return num_samples // HOP


def log_mel(samples: npt.NDArray[np.float32], num_mel_bins: int) -> npt.NDArray[np.float32]:
    """[num_frames + some of silence, num_mel_bins], as if silence went on for ever."""
    half = _SIZE // 2
    num_frames = num_frames_of(len(samples)) + _SILENT_FRAMES
    mirrored = np.pad(samples, (half, 0), mode="reflect")
    padded = np.pad(mirrored, (0, max(0, num_frames * HOP + _SIZE - len(mirrored))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SIZE)[::HOP][:num_frames]
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(_SIZE) / _SIZE)
    filters = mel_filters(num_mel_bins)
    logs = np.empty((num_frames, num_mel_bins))
    for begin in range(0, num_frames, _BLOCK_FRAMES):
        piece = slice(begin, begin + _BLOCK_FRAMES)
        power = np.abs(np.fft.rfft(frames[piece] * window)) ** 2
        logs[piece] = np.log10(np.maximum(power @ filters, _LEAST))
    logs = np.maximum(logs, logs.max() - _RANGE)
    scaled: npt.NDArray[np.float32] = ((logs + 4.0) / 4.0).astype(np.float32)
    return scaled


@functools.cache
def mel_filters(num_mel_bins: int) -> npt.NDArray[np.float64]:
    """[frequencies, num_mel_bins]: triangles of equal area, evenly spaced on Slaney's scale."""
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, 1 + _SIZE // 2)
    corners = _hertz(np.linspace(0.0, _mel(SAMPLE_RATE / 2), num_mel_bins + 2))
    widths = np.diff(corners)
    slopes = corners - frequencies[:, None]
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    area = 2.0 / (corners[2:] - corners[:-2])
    filters: npt.NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling)) * area
    return filters


_LINEAR_HERTZ = 200.0 / 3.0  # of a mel, below
_BEND_HERTZ, _BEND_MEL = 1000.0, 15.0
_LOG_STEP = np.log(6.4) / 27.0  # of a mel, above


def _mel(hertz: float) -> float:
    """The mel of a frequency above the bend."""
    return float(_BEND_MEL + np.log(hertz / _BEND_HERTZ) / _LOG_STEP)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = _BEND_HERTZ * np.exp(_LOG_STEP * (mels - _BEND_MEL))
    return np.where(mels < _BEND_MEL, mels * _LINEAR_HERTZ, above)


def resampled(values: npt.NDArray[np.float32], rate: int, wanted: int) -> npt.NDArray[np.float32]:
    """[num_samples] -> [ceil(num_samples * wanted / rate)]."""
    if rate == wanted:
        return values
    divisor = math.gcd(rate, wanted)
    up, down = wanted // divisor, rate // divisor  # output n lies at input n * down / up
    cutoff = min(1.0, wanted / rate) * _PASSED
    reach = math.ceil(_NUM_ZEROS / cutoff)
    num_out = -(-len(values) * up // down)
    padded = np.pad(values.astype(np.float64), (reach, reach + 1))
    taps = np.arange(-reach + 1, reach + 1)  # inputs around the one before an output
    windows = np.lib.stride_tricks.sliding_window_view(padded, len(taps))
    output = np.empty(num_out)
    for phase in range(min(up, num_out)):
        at = np.arange(phase, num_out, up)
        fraction = phase * down % up / up
        distance = fraction - taps
        kernel = cutoff * np.sinc(cutoff * distance)
        angle = distance * (math.pi / reach)
        kernel *= sum(weight * np.cos(idx * angle) for idx, weight in enumerate(_WINDOW))
        starts = at * down // up + 1  # `padded` begins `reach` before the first input
        for begin in range(0, len(at), _BLOCK):
            piece = slice(begin, begin + _BLOCK)
            step = windows[starts[piece][0] :: down][: len(at[piece])]
            output[at[piece]] = step @ kernel
    return output.astype(np.float32)
