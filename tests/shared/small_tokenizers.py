"""Tokenizers made in the test: byte-level BPE, and byte fallback with a leading space to strip."""

from __future__ import annotations

import functools

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and then he stops. STOP STOPPED\n\nEND",
    "héllo wörld 🙂 🙃 日本語 ¿qué? aaaa abab aab",
]


@functools.cache
def byte_level_tokenizer() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: characters beyond ASCII may span several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=330,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|end|>"],
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken("<tool call>", special=False), "\N{REPLACEMENT CHARACTER}"])
    return tokenizer


@functools.cache
def byte_fallback_tokenizer() -> Tokenizer:
    """As Llama 2 and Gemma: words with a leading mark, and bytes for what is not in the words."""
    words = ["▁the", "▁qu", "ick", "▁", "a", "b", "S", "TO", "P", "\n", ".", "é"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{i:02X}>": 3 + i for i in range(256)}
    vocab |= {word: 259 + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@functools.cache
def word_piece_tokenizer() -> Tokenizer:
    """As BERT: what follows may take back a space before it, so text is not stable."""
    words = ["[UNK]", "the", "fox", "##es", ".", ",", "do", "n't", "'s", "!"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return tokenizer
