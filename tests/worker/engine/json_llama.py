"""A tiny model with a tokenizer that knows JSON: random, but inclined to end what it began."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.worker.engine.tiny_models import save_tiny_llama

VOCAB_SIZE = 420
EOS_ID = 1
EAGER = ('"', "}", "]", ",", ' "', '",', ': "', "0", " ")  # likelier than others by EAGERNESS
EAGERNESS = 3.0
CORPUS = [
    '{"name": "Ada", "age": 36, "tags": ["x", "y"], "ok": true, "none": null, "pi": 3.14}',
    '[{"id": "a-1", "items": []}, {"id": "b-2", "items": [1, 2, 3], "note": false}]',
    "yes no maybe red green blue 2024-01-31T12:00:00Z https://example.com/a?b=c naïve 日本 🙂",
]


@functools.cache
def json_tokenizer() -> Tokenizer:
    """Byte-level BPE: `<s>` is 0, `</s>` is 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 8,  # the model has rows that no token stands for, as many do
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer


def save_json_llama(path: Path, **overrides: Any) -> Path:
    """A checkpoint whose first hidden channel is constant: its output weights are a bias."""
    save_tiny_llama(path, vocab_size=VOCAB_SIZE, max_position_embeddings=2048, **overrides)
    json_tokenizer().save(str(path / "tokenizer.json"))
    file = path / "model.safetensors"
    weights = load_file(file)
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[0] = 0
    weights["model.embed_tokens.weight"][:, 0] = 1.0
    head = weights["lm_head.weight"]
    head *= 0.5
    head[:, 0] = 0
    tokenizer = json_tokenizer()
    for text in EAGER:
        token_id = tokenizer.token_to_id(text.replace(" ", "Ġ"))
        if token_id is not None:
            head[token_id, 0] = EAGERNESS
    save_file(weights, file, metadata={"format": "pt"})
    return path


def encode(text: str) -> list[int]:
    token_ids: list[int] = json_tokenizer().encode(text).ids
    return token_ids


def decode(token_ids: list[int]) -> str:
    return str(json_tokenizer().decode(token_ids, skip_special_tokens=True))
