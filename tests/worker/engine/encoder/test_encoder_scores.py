"""Cross-encoders beside transformers' own forward, one pair at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.pooled_files import ENCODERS
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.finish import FinishReason
from shared.protocol.model_cards import ScoreCard
from shared.protocol.reply import ScoreMethod
from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.worker.engine.tiny_models import random_prompt
from tests.worker.engine_fakes import FakeChannel, make_add
from worker.engine.encoder.encoder_runner import length_groups
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine.loop.engine import Engine
from worker.engine_link.engine_config import EngineConfig

CONTEXT_LEN = 128
# Of transformers' model types: what their configurations need beside the sizes of all.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", {}),
    "electra": ("ElectraForSequenceClassification", {"embedding_size": 16}),
    "modernbert": ("ModernBertForSequenceClassification", {"global_attn_every_n_layers": 2}),
    "roberta": ("RobertaForSequenceClassification", {"type_vocab_size": 1, "pad_token_id": 1}),
    "xlm-roberta": (
        "XLMRobertaForSequenceClassification",
        {"type_vocab_size": 1, "pad_token_id": 1},
    ),
}

Vector = npt.NDArray[np.float32]


def save_tiny_encoder(path: Path, model_type: str, **overrides: Any) -> Path:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    is_shifted = overrides.get("pad_token_id") == 1
    config = AutoConfig.for_model(
        model_type,
        **{
            "vocab_size": 300,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": CONTEXT_LEN + 2 * is_shifted,
            "initializer_range": 0.3,
            "pad_token_id": 0,
            "num_labels": 1,
        }
        | overrides,
    )
    torch.manual_seed(0)
    auto_model: Any = AutoModelForSequenceClassification
    auto_model.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


class Rig:
    """An engine in this process."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.channel = FakeChannel()
        options: dict[str, Any] = {
            "num_threads": 1,
            "max_running": 16,
            "max_step_s": 60.0,
            "target_itl_s": 60.0,
        }
        engine_config = EngineConfig(model_path=str(path), **(options | config))
        self.loop = EngineLoader(engine_config, self.channel).load()
        assert isinstance(self.loop._engine, Engine)
        self.engine = self.loop._engine

    def run(self, *commands: Any) -> None:
        self.channel.commands = list(commands)
        self.loop.run(until_idle=True)
        self.engine._scheduler.check_integrity()

    def vector(self, run_id: int) -> Vector:
        finish = self.channel.finishes()[run_id]
        assert finish.reason is FinishReason.STOP, finish
        assert finish.num_cached_tokens == 0
        return np.frombuffer(finish.embedding, np.dtype("<f4"))


def pair(second_start: int, *, normalize: bool = False) -> PoolingParams:
    return PoolingParams(PoolingKind.ENCODED, normalize=normalize, second_start=second_start)


def test_all_families_are_tested() -> None:
    assert {architecture for architecture, _ in FAMILIES.values()} == ENCODERS.keys()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_an_encoder_says_what_transformers_says(tmp_path: Path, model_type: str) -> None:
    """Longer prompts take several chunks; equal beginnings spare nothing, and harm nothing."""
    from transformers import AutoModelForSequenceClassification

    architecture, overrides = FAMILIES[model_type]
    path = save_tiny_encoder(tmp_path / model_type, model_type, **overrides)
    files = ModelFiles.read(path)
    assert files.config["architectures"] == [architecture]
    card = files.card("m", TokenizerBundle({"tokenizer.json": b"{}"}))
    assert (card.can_generate, card.embedding, card.max_context_len) == (False, None, CONTEXT_LEN)
    assert card.score == ScoreCard(ScoreMethod.CLASSIFIER, is_encoder=True)
    shared = random_prompt(40, 1)
    prompts = [random_prompt(length, length) for length in (1, 2, 31, 32, 33, CONTEXT_LEN)]
    prompts += [shared + random_prompt(length, length) for length in (5, 40)]
    starts = [len(prompt) // 2 for prompt in prompts]
    auto_model: Any = AutoModelForSequenceClassification
    model = auto_model.from_pretrained(path, dtype=torch.float32)
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    theirs = []
    for prompt, start in zip(prompts, starts, strict=True):
        types = [0] * start + [1] * (len(prompt) - start) if start else [0] * len(prompt)
        options = {"token_type_ids": torch.tensor([types])} if has_types else {}
        with torch.inference_mode():
            theirs.append(model(torch.tensor([prompt]), **options).logits[0].numpy())
    assert np.std(theirs) > 0.05, "they must differ to be told apart"
    rig = Rig(path, max_step_tokens=64, num_kv_tokens=512)
    rig.run(
        *(
            make_add(run_id, prompt, pooling=pair(start))
            for run_id, (prompt, start) in enumerate(zip(prompts, starts, strict=True))
        )
    )
    alone = Rig(path)
    for run_id, prompt in enumerate(prompts):
        assert rig.vector(run_id) == pytest.approx(theirs[run_id], rel=1e-4, abs=1e-4)
        alone.run(make_add(run_id, prompt, pooling=pair(starts[run_id])))
        assert alone.vector(run_id) == pytest.approx(rig.vector(run_id), abs=1e-5)
    alone.run(make_add(100, prompts[3], pooling=pair(starts[3], normalize=True)))
    assert alone.vector(100) == pytest.approx(1 / (1 + np.exp(-theirs[3])), abs=1e-5)
    alone.run(make_add(101, random_prompt(CONTEXT_LEN + 1, 1), pooling=pair(0)))
    assert "129 tokens" in (alone.channel.finishes()[101].message or "")


def test_a_long_text_makes_no_padding_for_short_ones() -> None:
    lengths = [8000, 30, 20, 120, 21, 30, 7000]
    assert length_groups(lengths) == [[2, 4, 1, 5], [3], [6, 0]]
    assert length_groups([7]) == [[0]]


def test_token_types_count(tmp_path: Path) -> None:
    path = save_tiny_encoder(tmp_path, "bert")
    rig = Rig(path)
    prompt = random_prompt(20, 1)
    rig.run(*(make_add(start, prompt, pooling=pair(start)) for start in (0, 7, 12)))
    assert len({float(rig.vector(start)[0]) for start in (0, 7, 12)}) == 3


@pytest.mark.parametrize("are_independent", [False, True])
def test_an_encoder_tells_all_its_labels(tmp_path: Path, are_independent: bool) -> None:
    from transformers import AutoModelForSequenceClassification

    path = save_tiny_encoder(tmp_path, "bert", num_labels=5)
    auto_model: Any = AutoModelForSequenceClassification
    model, prompt = auto_model.from_pretrained(path, dtype=torch.float32), random_prompt(20, 1)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0]
    theirs = logits.sigmoid() if are_independent else logits.softmax(dim=0)
    rig = Rig(path)
    pooling = PoolingParams(PoolingKind.ENCODED, are_independent=are_independent)
    rig.run(make_add(1, prompt, pooling=pooling))
    assert rig.vector(1) == pytest.approx(theirs.numpy(), abs=1e-5)


def test_dummy_weights(tmp_path: Path) -> None:
    path = save_tiny_encoder(tmp_path, "bert")
    (path / "model.safetensors").unlink()
    rig = Rig(path, load_format="dummy")
    rig.run(make_add(1, random_prompt(20, 1), pooling=pair(0)))
    assert np.isfinite(rig.vector(1)).all()
    with pytest.raises(ConfigError):
        Rig(path)


def test_other_encoders_are_refused_by_name(tmp_path: Path) -> None:
    path = save_tiny_encoder(tmp_path, "deberta-v2")
    with pytest.raises(
        ConfigError, match="DebertaV2ForSequenceClassification: 0 of 3 layers have an attention"
    ):
        Rig(path)
