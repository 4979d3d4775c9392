"""Files of audio: read, brought to one rate, and made into what a model hears."""

from __future__ import annotations

import builtins
import io
import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from frontend.audio.audio_file import BadAudio, demuxer_of, read_container, read_wav
from frontend.audio.loader import load_audio
from frontend.audio.spectrogram import log_mel, num_frames_of, resampled
from shared.errors import InvalidRequest
from shared.protocol.hearing_card import SAMPLE_RATE, HearingCard
from tests.tiny_whisper import riff, sound, wav_file

CARD = HearingCard(80, 1, 2, 3, 4, 448)
TONE = sound(0.5)


def samples_as(kind: int, num_bits: int) -> bytes:
    if kind == 3:
        return TONE.astype(f"<f{num_bits // 8}").tobytes()
    steps = np.round(TONE.astype(np.float64) * (1 << (num_bits - 1))).astype("<i8")
    if num_bits == 8:
        return bytes((steps + 128).astype(np.uint8))
    wide = steps.view(np.uint8).reshape(-1, 8)
    return bytes(wide[:, : num_bits // 8])


@pytest.mark.parametrize(
    ("kind", "num_bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)]
)
def test_wav_files_hold_what_was_put_in(kind: int, num_bits: int) -> None:
    data = riff(kind, 1, 8000, num_bits, samples_as(kind, num_bits))
    values, rate = read_wav(data, 10.0)
    assert rate == 8000
    assert values.dtype == np.float32
    assert np.abs(values - TONE).max() <= (1e-6 if kind == 3 else 0.51 / (1 << (num_bits - 1)))


def test_channels_are_mixed_and_a_length_that_nobody_knew_is_what_is_there() -> None:
    stereo = np.stack([TONE, np.zeros_like(TONE)], axis=1).tobytes()
    data = bytearray(riff(3, 2, SAMPLE_RATE, 32, stereo))
    place = data.index(b"data") + 4
    data[place : place + 4] = struct.pack("<I", 0xFFFFFFFF)
    assert np.allclose(read_wav(bytes(data), 10.0).values, TONE / 2, atol=1e-7)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000, 7919])
def test_a_tone_stays_itself_at_another_rate(rate: int) -> None:
    times = np.arange(rate // 2) / rate
    tone = np.sin(2 * np.pi * 1000 * times).astype(np.float32)
    got = resampled(tone, rate, SAMPLE_RATE)
    assert len(got) == math.ceil(len(tone) * SAMPLE_RATE / rate)
    wanted = np.sin(2 * np.pi * 1000 * np.arange(len(got)) / SAMPLE_RATE)
    inside = slice(800, -800)
    assert np.abs(got - wanted)[inside].max() < 1e-5
    if rate > 2 * 9000:  # what 16 kHz cannot carry is gone
        high = np.sin(2 * np.pi * 9000 * times).astype(np.float32)
        assert np.abs(resampled(high, rate, SAMPLE_RATE))[inside].max() < 1e-4


@pytest.mark.torch
@pytest.mark.parametrize(("seconds", "num_mel_bins"), [(0.31, 80), (31.7, 128)])
def test_a_spectrogram_is_that_of_transformers(seconds: float, num_mel_bins: int) -> None:
    from transformers import WhisperFeatureExtractor

    samples = sound(seconds)
    ours = log_mel(samples, num_mel_bins)
    num_frames = num_frames_of(len(samples))
    extractor: Any = WhisperFeatureExtractor(feature_size=num_mel_bins)
    padded = np.pad(samples, (0, 480_000))  # with silence, as it pads what is short
    theirs = (
        extractor(padded, sampling_rate=SAMPLE_RATE, truncation=False, padding="longest")
        .input_features[0]
        .T
    )
    assert np.abs(ours - theirs[: len(ours)]).max() < 2e-5  # it computes in float32
    exact = extractor._np_extract_fbank_features(padded[None], "cpu")[0].T
    assert np.abs(ours - exact[: len(ours)]).max() < 1e-6
    assert np.abs(ours[-1] - exact[len(ours) : num_frames + 3000]).max() < 1e-6


BOMB = b"ID3\x04\0\0\0\0\0\0" + b"\xff\xfb\x90\x00" + bytes(4000)
BAD = {
    "nothing": (b"", "is none of WAV, FLAC"),
    "a page": (b"<html>", "is none of WAV, FLAC"),
    "a list of files": (b"#EXTM3U\nhttp://169.254.169.254/x\n", "is none of WAV, FLAC"),
    "a head": (wav_file(TONE)[:30], "without a format, or without samples"),
    "no samples": (wav_file(TONE[:0]), "is shorter than 0.1 s"),
    "too short": (wav_file(TONE[:1000]), "is shorter than 0.1 s"),
    "too long": (riff(1, 1, 1000, 8, bytes(61_000)), "is longer than 60 s (--max-audio-s)"),
    "a law": (riff(6, 1, 8000, 8, bytes(9000)), "of format 6 with 8 bits"),
    "no channel": (riff(1, 0, 8000, 16, bytes(9000)), "has 0 channels"),
    "no rate": (riff(1, 1, 0, 16, bytes(9000)), "0 samples a second"),
    "a sample a second": (riff(1, 1, 1, 8, bytes(50)), "1 samples a second"),
    "a rate of 4 GHz": (riff(1, 1, 4_000_000_000, 8, bytes(9000)), "4000000000 samples a second"),
    "no number": (riff(3, 1, 8000, 32, b"\0\0\xc0\x7f" * 9000), "samples that are no numbers"),
    "a broken mp3": (BOMB, "cannot be decoded"),
    "a broken mp4": (b"\0\0\0\x20ftypM4A " + bytes(99), "cannot be decoded"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_heard_is_refused_by_name(name: str) -> None:
    data, told = BAD[name]
    with pytest.raises(InvalidRequest) as caught:
        load_audio(data, CARD, 60.0)
    assert told in caught.value.message
    assert (caught.value.param, caught.value.status_code) == ("file", 400)


@pytest.mark.parametrize(
    ("container", "codec", "demuxer"),
    [
        ("mp3", "libmp3lame", "mp3"),
        ("flac", "flac", "flac"),
        ("ogg", "libopus", "ogg"),
        ("mp4", "aac", "mp4"),
        ("webm", "libopus", "matroska"),
    ],
)
def test_other_files_are_decoded(
    container: str, codec: str, demuxer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(container, codec)
    assert demuxer_of(data) == demuxer
    values, rate = read_container(data, demuxer, 10.0)
    heard = resampled(sound(1.0, 48_000), 48_000, SAMPLE_RATE)
    assert rate == SAMPLE_RATE
    assert len(values) == pytest.approx(len(heard), rel=0.15)
    assert np.std(values) == pytest.approx(np.std(heard), rel=0.1)
    with pytest.raises(BadAudio, match=r"longer than 0\.5 s"):
        read_container(data, demuxer, 0.5)
    real_import = builtins.__import__

    def without_av(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(BadAudio, match=r"pip install 'jetflock\[audio\]'"):
        read_container(data, demuxer, 10.0)


def encoded(container: str, codec: str) -> bytes:
    """A second of sound."""
    import av

    rate = 48_000
    samples: npt.NDArray[np.float32] = sound(1.0, rate)[None]
    data = io.BytesIO()
    with av.open(data, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate, layout="mono")
        stream.codec_context.open()
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate = rate
        size = stream.codec_context.frame_size or 1024
        resampler = av.AudioResampler(stream.format, "mono", rate, frame_size=size)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    return data.getvalue()
