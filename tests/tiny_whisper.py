"""Whisper checkpoints with random weights, and sounds for them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from shared.gguf.tokens.bpe_tokenizer import byte_letters
from shared.protocol.hearing_card import SAMPLE_RATE

LANGUAGES = ("en", "de", "fr")
_SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{each}|>" for each in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startofprev|>",
    "<|notimestamps|>",
)
NUM_TIMESTAMPS = 1501
IDS = {name: 256 + idx for idx, name in enumerate(_SPECIAL)}
TIMESTAMP_ID = 256 + len(_SPECIAL)
VOCAB_SIZE = TIMESTAMP_ID + NUM_TIMESTAMPS
CONTEXT_LEN = 24

Samples = npt.NDArray[np.float32]


def save_tiny_whisper(path: Path, **overrides: Any) -> Path:
    """It knows three languages, and letters that are bytes. Its windows end after few tokens."""
    import torch
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        **{
            "vocab_size": VOCAB_SIZE,
            "num_mel_bins": 16,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 64,
            "max_target_positions": CONTEXT_LEN,
            "decoder_start_token_id": IDS["<|startoftranscript|>"],
            "eos_token_id": IDS["<|endoftext|>"],
            "bos_token_id": IDS["<|endoftext|>"],
            "pad_token_id": IDS["<|endoftext|>"],
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        }
        | overrides
    )
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:
                continue
            parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.3)
        model.get_input_embeddings().weight[IDS["<|endoftext|>"]] *= 5.0  # windows end by it, too
    model.generation_config = GenerationConfig(
        decoder_start_token_id=IDS["<|startoftranscript|>"],
        eos_token_id=IDS["<|endoftext|>"],
        bos_token_id=IDS["<|endoftext|>"],
        pad_token_id=IDS["<|endoftext|>"],
        no_timestamps_token_id=IDS["<|notimestamps|>"],
        prev_sot_token_id=IDS["<|startofprev|>"],
        lang_to_id={f"<|{each}|>": IDS[f"<|{each}|>"] for each in LANGUAGES},
        task_to_id={each: IDS[f"<|{each}|>"] for each in ("transcribe", "translate")},
        is_multilingual=True,
        max_initial_timestamp_index=50,
        suppress_tokens=[*range(32), *(IDS[each] for each in _SPECIAL[1:])],
        begin_suppress_tokens=[32, IDS["<|endoftext|>"]],
        max_length=CONTEXT_LEN,
        return_timestamps=False,
    )
    model.save_pretrained(path)
    _tokenizer().save(str(path / "tokenizer.json"))
    tokenizer_config = {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    processor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": config.num_mel_bins,
        "sampling_rate": SAMPLE_RATE,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
    }
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def sound(seconds: float, rate: int = SAMPLE_RATE, seed: int = 0) -> Samples:
    """Noise, which is louder and softer, and a tone."""
    times = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).standard_normal(len(times))
    loudness = 0.2 + 0.15 * np.sin(times * 0.7)
    tone = np.sin(2 * np.pi * 440 * times)
    return (loudness * (0.3 * noise + 0.5 * tone)).astype(np.float32)


def wav_file(samples: Samples, rate: int = SAMPLE_RATE) -> bytes:
    """[num_samples] in float32."""
    return riff(3, 1, rate, 32, samples.astype("<f4").tobytes())


def riff(kind: int, num_channels: int, rate: int, num_bits: int, data: bytes) -> bytes:
    """A WAV file of such samples; `kind` 1: integers, 3: floats."""
    frame = num_channels * num_bits // 8
    head = struct.pack("<HHIIHH", kind, num_channels, rate, rate * frame, frame, num_bits)
    chunks = b"fmt " + struct.pack("<I", len(head)) + head
    chunks += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def _tokenizer() -> Tokenizer:
    letters = byte_letters()
    model = models.BPE(vocab={letter: idx for idx, letter in enumerate(letters)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in _SPECIAL])
    tokenizer.add_tokens(
        [AddedToken(f"<|{idx * 0.02:.2f}|>", special=False) for idx in range(NUM_TIMESTAMPS)]
    )
    return tokenizer
