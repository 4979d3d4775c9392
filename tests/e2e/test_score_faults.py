"""A ranking while a worker dies: each pair has one score, the one that transformers gives it."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from jetflock import Client
from tests.e2e.role_stack import DEMO_MODEL, RoleStack
from tests.e2e.test_embedding_faults import INPUTS, SLOW, assert_settled, until_in_the_middle

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.timeout(180)]

MODEL = "ranker"
QUERY = "Which story is about dragons?"


def save_ranker(path: Path) -> Path:
    """The demo model with one label, of random weights, in place of its tokens."""
    import torch
    from transformers import LlamaForSequenceClassification

    torch.manual_seed(0)
    model = LlamaForSequenceClassification.from_pretrained(DEMO_MODEL, num_labels=1)
    model.score.weight.data.normal_(0, 0.3)
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, path)
    assert "id2label" in json.loads((path / "config.json").read_text())
    return path


def of_transformers(path: Path, texts: list[str]) -> list[float]:
    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaForSequenceClassification

    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    model = LlamaForSequenceClassification.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        return [
            float(model(torch.tensor([tokenizer.encode(QUERY, text).ids])).logits[0, 0].sigmoid())
            for text in texts
        ]


@pytest.mark.nightly
async def test_every_pair_is_scored_once(tmp_path: Path) -> None:
    ranker = await asyncio.to_thread(save_ranker, tmp_path / "ranker")
    async with RoleStack(tmp_path / "stack", "--ack-wait-s", "3") as stack:
        first, _ = (stack.start_worker(*SLOW, model=ranker, name=MODEL) for _ in range(2))
        await stack.wait_ready(2)
        await stack.wait_listed(MODEL)
        async with Client(stack.nats.url) as client:
            expected = await client.score_async(QUERY, INPUTS, model=MODEL)
            assert len(set(expected.scores)) > 50, "they must differ to be told apart"
            theirs = await asyncio.to_thread(of_transformers, ranker, INPUTS[:9])
            assert expected.scores[:9] == pytest.approx(theirs, abs=1e-4)
            task = asyncio.create_task(client.rerank_async(QUERY, INPUTS, model=MODEL))
            await until_in_the_middle(stack)
            first.kill()
            ranking = await task
        scores = {ranked.index: ranked.score for ranked in ranking.results}
        assert [scores[idx] for idx in range(len(INPUTS))] == pytest.approx(
            expected.scores, abs=1e-5
        )
        assert [each.score for each in ranking.results] == sorted(scores.values(), reverse=True)
        await assert_settled(stack)
