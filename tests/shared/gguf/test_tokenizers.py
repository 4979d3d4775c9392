"""Tokenizers from GGUF files give the ids of the tokenizers that the files were made from."""

from __future__ import annotations

import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.gguf.checkpoint_folder import tokenizer_files
from shared.gguf.gguf_file import GgufFile
from shared.gguf.metadata import Metadata
from shared.gguf.tokens.bpe_tokenizer import PRE_TOKENIZERS
from shared.gguf.tokens.vocabulary import Vocabulary

NUM_TEXTS = 2_000
# As they stand in the tokenizer.json of Llama 3, Qwen 2, GPT-OSS and Mistral Nemo.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|begin|>", "<|finish|>", "<|im_end|>"]
CORPUS = [
    "the quick brown fox jumps over the lazy dog, and then he's told: DON'T STOP!\n\n12345 67",
    "héllo wörld, naïve façade e\u0301 🙂 🙃 日本語の文章 привет мир ¿qué? aaaa abab aab \t\t x  y",
    "def f(x):\n    return x + 1  # we've 100% of it\r\n\r\n",
] * 20


@functools.cache
def texts() -> list[str]:
    """Random ones of all kinds of characters, and every special token amid and alone."""
    source = random.Random(0)
    alphabets = [
        "abcdefghijklmnopqrstuvwxyz", "ABCXYZ", "0123456789", " ", "\n\r\t  ", "'!?.,;:/#%&()[]{}",
        "'s't're've'LL'D", "éèüñçøÅ", "e\u0301a\u0308\u0327", "日本語中文字かな한국어", "приветЖЯ",
        "αβγΩ", "🙂🙃🚀👩\u200d💻🏽", "שלוםمرحبا", "\u00a0\u2003\u200b\ufeff", "ﬁ①½²Å",
    ]  # fmt: skip
    found = [*SPECIAL, "", " ", "  ", *(f"a {each} b{each}" for each in SPECIAL)]
    while len(found) < NUM_TEXTS:
        parts = []
        for _ in range(source.randint(1, 8)):
            kind = source.random()
            if kind < 0.05:
                parts.append(source.choice(SPECIAL))
            elif kind < 0.1:
                parts.append(chr(source.choice([source.randrange(0x20, 0xD800), 0x1F600])))
            elif kind < 0.3:
                parts.append(source.choice(CORPUS)[source.randrange(40) :][: source.randrange(30)])
            else:
                letters = source.choice(alphabets)
                parts += source.choices(letters, k=source.randint(1, 6))
        found.append("".join(parts))
    return found


def byte_level(kind: str) -> Tokenizer:
    """As the makers of each publish it."""
    steps: list[Any]
    match kind:
        case "gpt-2":
            steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
        case "smollm":
            steps = [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        case _:
            regexes = {"llama-bpe": LLAMA3, "dbrx": LLAMA3, "qwen2": QWEN2, "gpt-4o": O200K}
            split = Regex(regexes.get(kind, TEKKEN))
            steps = [
                pre_tokenizers.Split(split, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
    takes_words = kind in ("llama-bpe", "tekken")
    tokenizer = Tokenizer(models.BPE(ignore_merges=takes_words))
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=500,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=SPECIAL[:2] if kind == "smollm" else [],
            show_progress=False,
        ),
    )
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("<tool call>", special=False, normalized=False)])
    if kind == "llama-bpe":
        begin = tokenizer.token_to_id("<|begin|>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A",
            pair="<|begin|> $A <|begin|> $B",
            special_tokens=[("<|begin|>", begin)],
        )
    return tokenizer


def of_gguf(path: Path, add: Any) -> tuple[TokenizerBundle, Vocabulary]:
    writer: Any = gguf.GGUFWriter(str(path), "llama")
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = Metadata(path, GgufFile.read(path).metadata)
    vocabulary = Vocabulary.read(metadata)
    return TokenizerBundle(tokenizer_files(metadata, vocabulary)), vocabulary


def add_bpe(writer: Any, tokenizer: Tokenizer, kind: str) -> None:
    """As llama.cpp's converter: ids without a token are unused, two of them here."""
    told = json.loads(tokenizer.to_str())
    by_id = {token_id: text for text, token_id in tokenizer.get_vocab().items()}
    added = {each["id"]: each["special"] for each in told["added_tokens"]}
    size = max(by_id) + 3
    tokens = [by_id.get(token_id, f"[PAD{token_id}]") for token_id in range(size)]
    types = [
        gguf.TokenType.UNUSED
        if token_id not in by_id
        else gguf.TokenType.NORMAL
        if token_id not in added
        else gguf.TokenType.CONTROL
        if added[token_id]
        else gguf.TokenType.USER_DEFINED
        for token_id in range(size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in told["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.token_to_id("<|begin|>"))
    writer.add_eos_token_id(tokenizer.token_to_id("<|finish|>"))


@pytest.mark.parametrize(
    "kind", ["llama-bpe", "dbrx", "qwen2", "gpt-4o", "tekken", "gpt-2", "smollm"]
)
def test_byte_level_ids_are_those_of_the_tokenizer_before(tmp_path: Path, kind: str) -> None:
    tokenizer = byte_level(kind)
    bundle, vocabulary = of_gguf(tmp_path / "v.gguf", lambda w: add_bpe(w, tokenizer, kind))
    ours = bundle.tokenizer()
    expected = [each.ids for each in tokenizer.encode_batch(texts())]
    assert [each.ids for each in ours.encode_batch(texts())] == expected
    assert ours.decode_batch(expected) == tokenizer.decode_batch(expected)
    assert ours.decode_batch(expected, skip_special_tokens=False) == tokenizer.decode_batch(
        expected, skip_special_tokens=False
    )
    assert bundle.special_token("eos_token") == "<|finish|>"
    im_end = tokenizer.token_to_id("<|im_end|>")
    assert vocabulary.end_ids == (tokenizer.token_to_id("<|finish|>"), im_end)


def test_all_names_have_been_looked_at() -> None:
    """One of each kind is tested above; the others are the same under another name."""
    tested = ("llama-bpe", "dbrx", "qwen2", "gpt-4o", "tekken", "gpt-2", "smollm")
    kinds = {PRE_TOKENIZERS[name] for name in tested}
    assert set(PRE_TOKENIZERS.values()) == kinds


@functools.cache
def pieces(*, has_prefix: bool = True) -> Any:
    """A model of SentencePiece, trained as Llama 2's and Gemma's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=has_prefix,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def add_pieces(writer: Any, model: Any, *, has_prefix: bool = True) -> None:
    tokens, scores, types = [], [], []
    for token_id in range(model.vocab_size()):
        tokens.append(model.id_to_piece(token_id).encode())
        scores.append(model.get_score(token_id))
        types.append(
            gguf.TokenType.UNKNOWN
            if model.is_unknown(token_id)
            else gguf.TokenType.CONTROL
            if model.is_control(token_id)
            else gguf.TokenType.BYTE
            if model.is_byte(token_id)
            else gguf.TokenType.NORMAL
        )
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*tokens, *(each.encode() for each in SPECIAL)])
    writer.add_token_scores([*scores, *(-1000.0 for _ in SPECIAL)])
    writer.add_token_types([*types, *(gguf.TokenType.CONTROL for _ in SPECIAL)])
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    writer.add_add_space_prefix(has_prefix)


@pytest.mark.parametrize("has_prefix", [True, False])
def test_piece_ids_are_those_of_sentencepiece(tmp_path: Path, has_prefix: bool) -> None:
    model = pieces(has_prefix=has_prefix)
    bundle, _ = of_gguf(tmp_path / "v.gguf", lambda w: add_pieces(w, model, has_prefix=has_prefix))
    ours = bundle.tokenizer()
    plain = [text for text in texts() if not any(each in text for each in SPECIAL)]
    assert len(plain) > NUM_TEXTS / 2
    for text, encoding in zip(plain, ours.encode_batch(plain), strict=True):
        assert encoding.ids == [model.bos_id(), *model.encode(text)], text
        assert ours.decode(encoding.ids) == model.decode(model.encode(text)), text


def test_special_tokens_stand_amid_pieces(tmp_path: Path) -> None:
    """As with llama.cpp, and with Llama 2's own files: each piece of text has its own prefix."""
    model = pieces()
    bundle, _ = of_gguf(tmp_path / "v.gguf", lambda w: add_pieces(w, model))
    ours = bundle.tokenizer()
    first = model.vocab_size()
    for text in texts():
        if sum(text.count(each) for each in SPECIAL) == 1:
            special = next(each for each in SPECIAL if each in text)
            before, after = text.split(special)
            expected = [*model.encode(before), first + SPECIAL.index(special), *model.encode(after)]
            assert ours.encode(text, add_special_tokens=False).ids == expected, text


def test_an_unknown_way_to_cut_texts_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level("gpt-2")
    for name in ("default", "somebody-else"):
        with pytest.raises(ConfigError, match=f"tokenizer.ggml.pre '{name}' is not known here"):
            of_gguf(tmp_path / f"{name}.gguf", lambda w, n=name: add_bpe(w, tokenizer, n))


def test_other_kinds_of_tokenizers_are_refused(tmp_path: Path) -> None:
    def add(writer: Any) -> None:
        writer.add_tokenizer_model("t5")
        writer.add_token_list(["a", "b"])

    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.model 't5' is not supported; gpt2"):
        of_gguf(tmp_path / "v.gguf", add)


def test_chat_templates_come_along(tmp_path: Path) -> None:
    tokenizer = byte_level("gpt-2")

    def add(writer: Any) -> None:
        add_bpe(writer, tokenizer, "gpt-2")
        writer.add_chat_template(
            [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
        )

    bundle, _ = of_gguf(tmp_path / "v.gguf", add)
    assert bundle.chat_template == "D"
    assert {"name": "tool_use", "template": "T"} in bundle.config["chat_template"]


def test_harmony_ends_its_messages_with_a_token_that_ends_no_answer(tmp_path: Path) -> None:
    tokenizer = byte_level("gpt-4o")
    tokenizer.add_special_tokens(["<|end|>", "<|return|>", "<|call|>"])
    _, vocabulary = of_gguf(tmp_path / "v.gguf", lambda w: add_bpe(w, tokenizer, "gpt-4o"))
    ends = {vocabulary.texts[token_id] for token_id in vocabulary.end_ids}
    assert ends == {"<|finish|>", "<|im_end|>", "<|return|>", "<|call|>"}
