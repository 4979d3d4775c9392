"""Scores beside transformers' own logits: of classifiers, and of decoders that are asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.protocol.finish import FinishReason
from shared.protocol.model_cards import ClassifierCard, ScoreCard
from shared.protocol.reply import ScoreMethod
from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.tiny_decoder import CONTEXT_LEN
from tests.worker.engine.tiny_models import Rig, random_prompt, reference_logits, save_tiny_model
from tests.worker.engine_fakes import make_add

SCORE = PoolingParams(PoolingKind.LOGITS)
RAW = PoolingParams(PoolingKind.LOGITS, normalize=False)
YES, NO = 71, 5
YES_NO = PoolingParams(PoolingKind.LOGITS, token_ids=(YES, NO))
LENGTHS = (1, 2, 16, 63, 64, 65, 130, 300, CONTEXT_LEN)

Vector = npt.NDArray[np.float32]


def vector_of(rig: Rig, run_id: int) -> Vector:
    finish = rig.channel.finishes()[run_id]
    assert finish.reason is FinishReason.STOP, finish
    assert rig.channel.tokens()[run_id] == []
    return np.frombuffer(finish.embedding, np.dtype("<f4"))


def label_logits(path: Path, prompts: Sequence[Sequence[int]]) -> list[Vector]:
    """transformers' own, one prompt at a time."""
    from transformers import AutoModelForSequenceClassification

    auto_model: Any = AutoModelForSequenceClassification
    model = auto_model.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return [model(torch.tensor([list(prompt)])).logits[0].numpy() for prompt in prompts]


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2"])
def test_a_classifier_says_what_transformers_says(tmp_path: Path, model_type: str) -> None:
    """Fused, fused with other norms, and through transformers; alone as in a batch."""
    path = save_tiny_model(tmp_path / model_type, model_type, is_classifier=True)
    card = ModelFiles.read(path).card("m", TokenizerBundle({"tokenizer.json": b"{}"}))
    assert (card.can_generate, card.embedding) == (False, None)
    assert card.score == ScoreCard(ScoreMethod.CLASSIFIER)
    prompts = [random_prompt(length, seed) for seed, length in enumerate(LENGTHS)]
    theirs = label_logits(path, prompts)
    assert np.std(theirs) > 0.1, "they must differ to be told apart"
    rig = Rig(path, max_step_tokens=64)
    rig.run(
        *(make_add(run_id, prompt, pooling=RAW) for run_id, prompt in enumerate(prompts)),
        *(make_add(100 + run_id, prompt, pooling=SCORE) for run_id, prompt in enumerate(prompts)),
    )
    alone = Rig(path)
    for run_id, (prompt, logit) in enumerate(zip(prompts, theirs, strict=True)):
        assert vector_of(rig, run_id) == pytest.approx(logit, rel=1e-4, abs=1e-4)
        probability = 1 / (1 + np.exp(-logit))
        assert vector_of(rig, 100 + run_id) == pytest.approx(probability, abs=1e-4)
        alone.run(make_add(run_id, prompt, pooling=RAW))
        assert vector_of(alone, run_id) == pytest.approx(vector_of(rig, run_id), abs=1e-5)


@pytest.mark.parametrize("model_type", ["qwen3", "gemma2"])
def test_a_classifier_tells_all_its_labels(tmp_path: Path, model_type: str) -> None:
    path = save_tiny_model(tmp_path, model_type, is_classifier=True, num_labels=3)
    card = ModelFiles.read(path).card("m", TokenizerBundle({"tokenizer.json": b"{}"}))
    assert card.score is None
    assert card.classifier == ClassifierCard(("LABEL_0", "LABEL_1", "LABEL_2"))
    prompts = [random_prompt(length, length) for length in (1, 65)]
    rig = Rig(path)
    rig.run(*(make_add(run_id, prompt, pooling=SCORE) for run_id, prompt in enumerate(prompts)))
    for run_id, logits in enumerate(label_logits(path, prompts)):
        theirs = torch.from_numpy(logits).softmax(dim=0).numpy()
        assert vector_of(rig, run_id) == pytest.approx(theirs, abs=1e-4)


def test_yes_against_no_at_the_last_token(tiny_llama: Path) -> None:
    """Beside text that runs, in chunks; a shared beginning is computed once."""
    rig = Rig(tiny_llama, max_step_tokens=64)
    query = random_prompt(200, 1)
    prompts = [query + random_prompt(length, length) for length in (9, 30, 31, 100, 290)]
    text = make_add(100, random_prompt(20, 100), max_tokens=40, ignore_eos=True)
    rig.run(text, make_add(0, prompts[0], pooling=YES_NO))
    rig.run(*(make_add(i, prompt, pooling=YES_NO) for i, prompt in enumerate(prompts) if i))
    cached = [rig.channel.finishes()[run_id].num_cached_tokens for run_id in range(5)]
    assert cached == [0, 192, 192, 192, 192]
    for run_id, prompt in enumerate(prompts):
        theirs = reference_logits(tiny_llama, prompt)[-1, [YES, NO]].softmax(dim=0)
        assert vector_of(rig, run_id) == pytest.approx(theirs.numpy(), abs=1e-4)
    assert rig.channel.tokens()[100] == Rig(tiny_llama).run(text)[100]


def test_what_is_no_number_fails_alone(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    good = random_prompt(30, 1)
    poison = next(token_id for token_id in range(3, 300) if token_id not in good)
    rig.poison(poison)
    rig.run(make_add(1, [5, poison] * 20, pooling=YES_NO), make_add(2, good, pooling=YES_NO))
    assert rig.channel.finishes()[1].reason is FinishReason.ERROR
    theirs = reference_logits(tiny_llama, good)[-1, [YES, NO]].softmax(dim=0)
    assert vector_of(rig, 2) == pytest.approx(theirs.numpy(), abs=1e-4)
