"""Embeddings beside transformers' hidden states, in batches, over chunk borders and cache hits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import EmbeddingCard
from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.tiny_decoder import CONTEXT_LEN
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add

LAST = PoolingParams(PoolingKind.LAST)
MEAN = PoolingParams(PoolingKind.MEAN)
RAW_LAST = PoolingParams(PoolingKind.LAST, normalize=False)
RAW_MEAN = PoolingParams(PoolingKind.MEAN, normalize=False)

Vector = npt.NDArray[np.float32]


class Reference:
    """transformers' own last hidden states."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModel

        self._model = AutoModel.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        )

    def embedding(self, token_ids: Sequence[int], pooling: PoolingParams) -> Vector:
        with torch.inference_mode():
            states = self._model(torch.tensor([list(token_ids)])).last_hidden_state[0]
        vector = states[-1] if pooling.kind is PoolingKind.LAST else states.mean(dim=0)
        vector = vector[: pooling.dimensions]
        if pooling.normalize:
            vector = vector / vector.norm()
        numbers: Vector = vector.numpy()
        return numbers


@pytest.fixture(scope="module")
def reference(tiny_llama: Path) -> Reference:
    return Reference(tiny_llama)


def finish_of(rig: Rig, run_id: int) -> Finish:
    finish = rig.channel.finishes()[run_id]
    assert finish.reason is FinishReason.STOP, finish
    assert rig.channel.tokens()[run_id] == []
    return finish


def embedding_of(rig: Rig, run_id: int) -> Vector:
    return np.frombuffer(finish_of(rig, run_id).embedding, np.dtype("<f4"))


def assert_close(ours: Vector, theirs: Vector) -> None:
    assert ours.shape == theirs.shape
    assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)


def test_a_batch_of_mixed_lengths_beside_text_that_runs(
    tiny_llama: Path, reference: Reference
) -> None:
    """Chunks of up to 64 tokens: most prompts take several steps, and share them."""
    rig = Rig(tiny_llama, max_step_tokens=64)
    ways = [LAST, MEAN, RAW_LAST, RAW_MEAN]
    lengths = [1, 2, 16, 63, 64, 65, 130, 300, CONTEXT_LEN]
    asked = {
        run_id: (random_prompt(length, run_id), ways[run_id % 4])
        for run_id, length in enumerate(lengths * 2)
    }
    text = make_add(100, random_prompt(20, 100), max_tokens=60, ignore_eos=True)
    rig.run(
        text,
        *(make_add(run_id, prompt, pooling=pooling) for run_id, (prompt, pooling) in asked.items()),
    )
    for run_id, (prompt, pooling) in asked.items():
        assert_close(embedding_of(rig, run_id), reference.embedding(prompt, pooling))
    alone = Rig(tiny_llama).run(text)
    assert rig.channel.tokens()[100] == alone[100]


def test_the_last_token_profits_from_the_cache_and_a_mean_must_not(
    tiny_llama: Path, reference: Reference
) -> None:
    rig = Rig(tiny_llama)
    shared = random_prompt(200, 1)
    first, second = shared + random_prompt(9, 2), shared + random_prompt(30, 3)
    rig.run(make_add(1, first, pooling=MEAN))  # fills the cache
    rig.run(make_add(2, second, pooling=LAST), make_add(3, second, pooling=MEAN))
    assert [finish_of(rig, run_id).num_cached_tokens for run_id in (1, 2, 3)] == [0, 192, 0]
    for run_id, prompt, pooling in ((1, first, MEAN), (2, second, LAST), (3, second, MEAN)):
        assert_close(embedding_of(rig, run_id), reference.embedding(prompt, pooling))


def test_a_vector_of_each_token_whatever_is_cached(tiny_llama: Path, reference: Reference) -> None:
    rig = Rig(tiny_llama, max_step_tokens=48)
    prompt = random_prompt(130, 5)
    each, raw = (
        PoolingParams(PoolingKind.LAST, normalize=normalize, dimensions=8, each_token=True)
        for normalize in (True, False)
    )
    rig.run(make_add(1, prompt, max_tokens=2))
    probs = PoolingParams(PoolingKind.LOGITS, each_token=True)
    rig.run(
        *(make_add(run_id, prompt, pooling=way) for run_id, way in enumerate((each, raw, probs), 2))
    )
    states = np.stack(
        [reference.embedding(prompt[: end + 1], RAW_LAST) for end in range(len(prompt))]
    )[:, :8]
    assert_close(embedding_of(rig, 3).reshape(130, 8), states)
    norms = np.linalg.norm(states, axis=1, keepdims=True)
    assert_close(embedding_of(rig, 2).reshape(130, 8), states / norms)
    told = embedding_of(rig, 4).reshape(130, -1)
    rig.run(make_add(5, prompt, max_tokens=1, logprobs=1, ignore_eos=True))
    [token_id] = rig.channel.tokens()[5]
    assert told[-1].argmax() == token_id
    assert np.allclose(told.sum(axis=1), 1.0)


@pytest.mark.parametrize("how", ["alone", "in company", "drafted", "retracted", "resumed"])
def test_hidden_states_are_those_of_the_whole_text(how: str, tiny_llama: Path) -> None:
    """Of prompt and output but its last token, bit for bit, whatever came in between."""
    configs: dict[str, dict[str, Any]] = {
        "drafted": {"speculate": "suffix"},
        "retracted": {"num_kv_tokens": 256},
    }
    rig = Rig(tiny_llama, max_step_tokens=48, **configs.get(how, {}))
    prompt = [*random_prompt(20, 5), *random_prompt(20, 5)]
    wish: dict[str, Any] = {"hidden_states": True, "max_tokens": 60, "ignore_eos": True}
    others = [
        make_add(run_id, random_prompt(40, run_id), max_tokens=60, ignore_eos=True)
        for run_id in range(2, 7)
    ]
    rig.run(*(() if how == "alone" else others), make_add(1, prompt, **wish))
    tokens = rig.channel.tokens()[1]
    assert len(tokens) == 60
    told = rig.channel.finishes()[1].embedding
    if how == "retracted":
        assert rig.channel.steps[-1].load.num_preemptions > 0
    if how == "drafted":
        assert rig.channel.steps[-1].load.num_accepted > 0
    if how == "resumed":
        rig.run(make_add(9, prompt, tokens[:31], **wish))
        told = rig.channel.finishes()[9].embedding
    every = PoolingParams(PoolingKind.LAST, normalize=False, each_token=True)
    whole = Rig(tiny_llama)
    whole.run(make_add(1, [*prompt, *tokens[:-1]], pooling=every))
    assert told == finish_of(whole, 1).embedding


def test_a_retraction_in_the_middle(tiny_llama: Path, reference: Reference) -> None:
    """Text grows while a long prompt is prefilled, two tokens a step, until pages run out."""
    rig = Rig(tiny_llama, num_kv_tokens=320, max_step_tokens=4, max_running=3)
    rig.engine._scheduler._reserve_ratio.value = 0.0
    texts = [
        make_add(run_id, random_prompt(20, run_id), max_tokens=120, ignore_eos=True)
        for run_id in (1, 2)
    ]
    prompt = random_prompt(180, 3)
    rig.run(*texts, make_add(3, prompt, pooling=MEAN, priority=1))
    starts = [start for batch in rig.runner.batches for run_id, start, _ in batch if run_id == 3]
    assert starts.count(0) > 1, "it was not retracted"
    assert_close(embedding_of(rig, 3), reference.embedding(prompt, MEAN))


def test_dimensions_are_cut_before_the_norm(tiny_llama: Path, reference: Reference) -> None:
    rig = Rig(tiny_llama)
    prompt = random_prompt(40, 1)
    short = PoolingParams(PoolingKind.LAST, dimensions=10)
    rig.run(make_add(1, prompt, pooling=short))
    vector = embedding_of(rig, 1)
    assert_close(vector, reference.embedding(prompt, short))
    assert len(vector) == 10
    assert abs(np.linalg.norm(vector) - 1) < 1e-6


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_a_checkpoint_without_a_head(tmp_path: Path, model_type: str) -> None:
    """As sentence-transformers saves it: other names of tensors, and files that say how to pool."""
    from transformers import AutoModel

    full = save_tiny_model(tmp_path / "full", model_type)
    path = tmp_path / "headless"
    AutoModel.from_pretrained(full, dtype=torch.float32).save_pretrained(path)
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    card = ModelFiles.read(path).card("m", TokenizerBundle({"tokenizer.json": b"{}"}))
    assert not card.can_generate
    assert card.embedding == EmbeddingCard(48, PoolingKind.MEAN, normalize=False)
    prompt = random_prompt(40, 1)
    rig = Rig(path)
    rig.run(make_add(1, prompt, pooling=RAW_MEAN))
    assert_close(embedding_of(rig, 1), Reference(path).embedding(prompt, RAW_MEAN))
    assert ModelFiles.read(full).card("m", TokenizerBundle({"tokenizer.json": b"{}"})).can_generate


def test_what_is_no_number_fails_alone(tiny_llama: Path, reference: Reference) -> None:
    rig = Rig(tiny_llama)
    good = random_prompt(30, 1)
    poison = next(token_id for token_id in range(3, 300) if token_id not in good)
    rig.poison(poison)
    rig.run(
        make_add(1, [5, poison] * 40, pooling=MEAN),
        make_add(2, good, pooling=MEAN),
        make_add(3, [5, poison] * 40, pooling=LAST),
        make_add(4, [5, poison] * 40 + good, pooling=LAST),  # nothing of it may be in the cache
        make_add(5, good, pooling=LAST),
    )
    for run_id in (1, 3, 4):
        assert rig.channel.finishes()[run_id].reason is FinishReason.ERROR
    assert_close(embedding_of(rig, 2), reference.embedding(good, MEAN))
    assert_close(embedding_of(rig, 5), reference.embedding(good, LAST))


def test_a_prompt_beyond_the_context_is_refused(tiny_llama: Path) -> None:
    rig = Rig(tiny_llama)
    rig.run(make_add(1, random_prompt(CONTEXT_LEN + 1, 1), pooling=LAST))
    finish = rig.channel.finishes()[1]
    assert finish.reason is FinishReason.ERROR
    assert "513 tokens" in (finish.message or "")
