"""Checkpoint folders, and what is read of them about embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.pooled_files import embedding_card, is_embedder
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.model_cards import EmbeddingCard
from shared.protocol.sampling import PoolingKind

CONFIG: dict[str, Any] = {"hidden_size": 64}


def module(kind: str, path: str = "") -> dict[str, str]:
    return {"path": path, "type": f"sentence_transformers.models.{kind}"}


TRANSFORMER, POOLING = module("Transformer"), module("Pooling", "1_Pooling")


def write_modules(folder: Path, *modules: dict[str, str], **pooling: Any) -> None:
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


def test_a_plain_decoder_gives_its_last_token_normalised(tmp_path: Path) -> None:
    assert not is_embedder(tmp_path)
    assert embedding_card(tmp_path, CONFIG) == EmbeddingCard(64, PoolingKind.LAST, normalize=True)
    assert embedding_card(tmp_path, {"n_embd": 32}) == EmbeddingCard(32)
    assert embedding_card(tmp_path, {}) is None


def test_the_files_of_sentence_transformers_decide(tmp_path: Path) -> None:
    modes = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}
    write_modules(tmp_path, TRANSFORMER, POOLING, word_embedding_dimension=64, **modes)
    assert is_embedder(tmp_path)
    card = embedding_card(tmp_path, CONFIG)
    assert card == EmbeddingCard(64, PoolingKind.MEAN, normalize=False)


def test_a_normalize_module(tmp_path: Path) -> None:
    modules = (TRANSFORMER, POOLING, module("Normalize", "2_Normalize"))
    write_modules(tmp_path, *modules, pooling_mode_lasttoken=True)
    card = embedding_card(tmp_path, CONFIG)
    assert card == EmbeddingCard(64, PoolingKind.LAST, normalize=True)


@pytest.mark.parametrize(
    ("modules", "pooling", "words"),
    [
        ((TRANSFORMER, POOLING), {"pooling_mode_cls_token": True}, "pooling_mode_cls_token"),
        (
            (TRANSFORMER, POOLING),
            {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
            "pooling_mode_mean_tokens, pooling_mode_max_tokens",
        ),
        ((TRANSFORMER, POOLING), {}, "no pooling mode"),
        (
            (TRANSFORMER, POOLING),
            {"pooling_mode_mean_tokens": True, "include_prompt": False},
            "include_prompt",
        ),
        ((TRANSFORMER,), {}, "names no pooling"),
        (
            (TRANSFORMER, POOLING, module("Dense", "2_Dense")),
            {"pooling_mode_mean_tokens": True},
            "'Dense'",
        ),
    ],
)
def test_what_we_lack_is_refused_by_name(
    tmp_path: Path, modules: tuple[dict[str, str], ...], pooling: dict[str, Any], words: str
) -> None:
    write_modules(tmp_path, *modules, **pooling)
    with pytest.raises(ConfigError, match=words):
        embedding_card(tmp_path, CONFIG)


@pytest.mark.parametrize(
    ("architecture", "can_generate"),
    [("Qwen3ForCausalLM", True), ("GPT2LMHeadModel", True), ("Qwen3Model", False)],
)
def test_who_generates(tmp_path: Path, architecture: str, *, can_generate: bool) -> None:
    config = {"architectures": [architecture], "max_position_embeddings": 9, "vocab_size": 9}
    files = ModelFiles(tmp_path, config, {})
    assert files.card("m", TokenizerBundle({})).can_generate is can_generate


def test_matryoshka(tmp_path: Path) -> None:
    card = embedding_card(tmp_path, {**CONFIG, "is_matryoshka": True})
    assert card == EmbeddingCard(64, is_matryoshka=True)
    card = embedding_card(tmp_path, {**CONFIG, "matryoshka_dimensions": [32, 8]})
    assert card == EmbeddingCard(64, is_matryoshka=True, matryoshka_dimensions=(8, 32))
