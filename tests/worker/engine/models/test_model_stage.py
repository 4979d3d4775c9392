"""Stages of a model, one behind the other, compute its very bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from shared.errors import ConfigError
from tests.worker.engine.cuda.test_rank_share import (
    DENSE,
    DIVIDED_LATENTS,
    hidden_of,
    logits,
    torch_ops,
    whole_config,
)
from tests.worker.engine.families import FUSED_IN_TORCH, MIXTURES, RECURRENT, by_day
from tests.worker.engine.tiny_models import save_tiny_llama, save_tiny_model
from worker.engine.models.decoder import DecoderModel
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.model_loading import open_weights
from worker.engine.models.model_stage import StageReader, of_stage, read_elsewhere, stages_of

FAMILIES = DENSE | DIVIDED_LATENTS | MIXTURES | {"llama4": FUSED_IN_TORCH["llama4"]}
del FAMILIES["gemma4"]  # it has inputs of each layer


def logits_by_stages(path: Path, whole: DecoderConfig, num_stages: int) -> torch.Tensor:
    """[num_tokens, vocab_size] of the prompt. Each stage finds all its weights, and no others."""
    rows: torch.Tensor | None = None
    for stage in stages_of(whole, num_stages):
        config = of_stage(whole, stage)
        stored = replace(whole, unread_parts=read_elsewhere(whole, stage))
        with open_weights(stored, path, "safetensors", torch.float32, lambda _: None) as reader:
            share = partial(StageReader, stage)
            model = DecoderModel(config, reader, torch_ops(config), share=share)
        with torch.inference_mode():
            rows = hidden_of(model, config, rows)
    assert rows is not None
    with torch.inference_mode():
        return model.logits(rows).float()


# Tied embeddings and own heads, embeddings of positions, other names, sinks, windows by layer,
# layers of several shapes, dense layers before mixtures.
BY_DAY = {
    "llama tied", "gpt2", "opt", "gemma2", "gpt_neox", "glm4_moe", "gpt_oss", "deepseek_v2",
}  # fmt: skip


@pytest.mark.parametrize("name", by_day(FAMILIES, BY_DAY))
def test_stages_give_the_logits_of_one(tmp_path: Path, name: str) -> None:
    model_type, overrides = FAMILIES[name]
    path = save_tiny_model(tmp_path, model_type, **overrides)
    whole = whole_config(path)
    assert torch.equal(logits_by_stages(path, whole, 2), logits(path, whole))


def test_the_last_stage_has_fewer_layers_where_its_head_is_large(tmp_path: Path) -> None:
    path = save_tiny_llama(tmp_path, num_hidden_layers=8)
    whole = whole_config(path)
    small, large = (replace(whole, vocab_size=size) for size in (8, 4 * 512))
    assert [(each.begin, each.end) for each in stages_of(small, 3)] == [(0, 3), (3, 6), (6, 8)]
    sizes = [each.end - each.begin for each in stages_of(large, 2)]
    assert sum(sizes) == 8
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize(
    ("name", "what"),
    [("qwen3_next", "a state beside keys and values"), ("gemma4", "its inputs of each layer")],
)
def test_what_layers_of_two_stages_would_share_is_refused(
    tmp_path: Path, name: str, what: str
) -> None:
    model_type, overrides = (RECURRENT | FUSED_IN_TORCH)[name]
    whole = whole_config(save_tiny_model(tmp_path, model_type, **overrides))
    with pytest.raises(ConfigError, match=rf"^pp=2 is not possible with .*: {what} cannot be cut"):
        stages_of(whole, 2)


def test_there_are_no_more_stages_than_layers(tmp_path: Path) -> None:
    whole = whole_config(save_tiny_llama(tmp_path, num_hidden_layers=2))
    with pytest.raises(ConfigError, match="pp=3 is more than the 2 layers"):
        stages_of(whole, 3)
