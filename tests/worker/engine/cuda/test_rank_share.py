"""What ranks compute of a model, layer by layer, is what one computes: in threads, on a CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.errors import ConfigError
from tests.lora_adapters import save_adapter
from tests.worker.engine.families import (
    FUSED,
    FUSED_IN_TORCH,
    LATENT,
    MIXTURES,
    RECURRENT,
    by_day,
)
from tests.worker.engine.tiny_models import random_prompt, save_tiny_model
from worker.engine.cpu.forward_batch import ForwardBatch, ForwardMode
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.model_runner import TorchForward
from worker.engine.cpu.torch_attention import TorchAttentionBackend
from worker.engine.cuda.tensor_parallel.rank_share import RankLayerOps, RankShare, divide
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.layers.linear import PlainLinears
from worker.engine.lora.lora_adapter import LoraAdapter, LoraBatch, LoraRows
from worker.engine.lora.lora_projection import LoraWeights, read_lora_weights
from worker.engine.models.decoder import DecoderModel
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.layer_ops import LayerOps, TorchLayerOps
from worker.engine.models.layer_ropes import LayerRopes
from worker.engine.models.model_loading import open_weights
from worker.engine.models.registry import read_model_config

PAGE_SIZE = 16
PROMPT = random_prompt(43, 1)  # beyond windows and chunks

ERROR = 1e-4
DENSE = FUSED | {
    name: family
    for name, family in FUSED_IN_TORCH.items()
    if name not in ("gemma3n", "gemma4 experts", "llama4", "ministral3", "ministral3 window")
}
DIVIDED_LATENTS = {
    name: family
    for name, family in LATENT.items()
    if name not in ("deepseek_v32", "glm_moe_dsa")  # they choose positions
}
DIVIDED_MIXTURES = {
    name: family
    for name, family in (MIXTURES | {"llama4": FUSED_IN_TORCH["llama4"]}).items()
    if name not in ("afmoe", "mimo_v2_flash")  # a gate of attention, values of another size
}


class ThreadGroup:
    """A `RankGroup` of threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=60)
        self._parts: list[torch.Tensor] = [torch.empty(0)] * size

    def member(self, rank: int) -> ThreadRank:
        return ThreadRank(self, rank)

    def exchange(self, rank: int, values: torch.Tensor) -> list[torch.Tensor]:
        self._parts[rank] = values.clone()
        self._barrier.wait()
        parts = list(self._parts)
        self._barrier.wait()
        return parts


class ThreadRank:
    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.size = group.size

    def sum_in_order(self, values: torch.Tensor) -> None:
        first, *others = self._group.exchange(self.rank, values)
        values.copy_(sum(others, first))

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._group.exchange(self.rank, values), dim=1)


def logits(
    path: Path, whole: DecoderConfig, group: Any = None, adapter: LoraWeights | None = None
) -> torch.Tensor:
    """[num_tokens, vocab_size] of the prompt, computed by a rank, or alone."""
    config = whole if group is None else divide(whole, group.size)
    ops, share = torch_ops(config), None
    if group is not None:
        ops = RankLayerOps(ops, group, adds_in_order=True)
        of_rank = RankShare(whole, group.rank, group.size)
        share = of_rank.reader
        adapter = adapter and of_rank.lora(adapter)
    with open_weights(whole, path, "safetensors", torch.float32, lambda _: None) as reader:
        model = DecoderModel(config, reader, ops, share=share)
    loras = None
    if adapter is not None:
        loaded = LoraAdapter("one", model.lora_projections(adapter))
        loras = LoraBatch([LoraRows(loaded, torch.arange(len(PROMPT)))])
    with torch.inference_mode():
        return model.logits(hidden_of(model, config, loras=loras)).float()


def torch_ops(config: DecoderConfig) -> LayerOps:
    ropes = LayerRopes.of(config, config.max_context_len, torch.float32)
    return TorchLayerOps(ropes, config.attention_layers, PlainLinears())


def hidden_of(
    model: DecoderModel,
    config: DecoderConfig,
    stage_rows: torch.Tensor | None = None,
    loras: LoraBatch | None = None,
) -> torch.Tensor:
    """What a model that `config` describes makes of the prompt."""
    num_pages = -(-len(PROMPT) // PAGE_SIZE)
    pool = KVCachePool(KVLayout.of(config.attention_layers, torch.float32, PAGE_SIZE), num_pages)
    forward = TorchForward(model, TorchAttentionBackend(pool, model.attention_layers))
    places = torch.arange(len(PROMPT))
    return forward.hidden(
        ForwardBatch(
            forward_mode=ForwardMode.EXTEND,
            input_ids=torch.tensor(PROMPT),
            positions=places,
            out_loc=places,
            query_lens=[len(PROMPT)],
            seq_lens=[len(PROMPT)],
            page_table=torch.arange(num_pages, dtype=torch.int32)[None],
            sample_idx=places,
            stage_rows=stage_rows,
            loras=loras,
        )
    )


def in_ranks(num_ranks: int, work: Callable[[ThreadRank], torch.Tensor]) -> Sequence[torch.Tensor]:
    group = ThreadGroup(num_ranks)
    with ThreadPoolExecutor(num_ranks) as threads:
        return list(threads.map(work, map(group.member, range(num_ranks))))


def whole_config(path: Path) -> DecoderConfig:
    config = read_model_config(path)
    assert isinstance(config, DecoderConfig)
    return config


def assert_divided(path: Path, num_ranks: int, adapter: LoraWeights | None = None) -> None:
    config = whole_config(path)
    alone = logits(path, config, adapter=adapter)
    first, *others = in_ranks(num_ranks, lambda rank: logits(path, config, rank, adapter))
    error = (first - alone).abs().max() / alone.abs().max()
    assert error < ERROR, error
    for each in others:
        assert torch.equal(each, first), "ranks must never differ"


# Joined and transposed projections, heads in turn, biases, sinks, norms of heads by themselves and
# of all at once, one head of keys and values for all, layers of several shapes, MLPs in parallel.
BY_DAY = {
    "llama biases", "phi3", "gemma4", "gemma4 keys as values", "olmo2", "stablelm parallel",
    "gpt_neox", "gpt2 by layer", "gpt_bigcode", "granite swa", "cohere norms", "persimmon",
    "falcon 40b",
}  # fmt: skip


@pytest.mark.parametrize("name", by_day(DENSE, BY_DAY))
def test_ranks_give_the_logits_of_one(tmp_path: Path, name: str) -> None:
    model_type, overrides = DENSE[name]
    assert_divided(save_tiny_model(tmp_path, model_type, **overrides), 2)


@pytest.mark.parametrize("name", by_day(DIVIDED_LATENTS, {"deepseek_v2", "youtu"}))
def test_ranks_attend_over_latents_by_their_heads(tmp_path: Path, name: str) -> None:
    model_type, overrides = DIVIDED_LATENTS[name]
    assert_divided(save_tiny_model(tmp_path, model_type, **overrides), 2)


# One by one and stacked, in turns, transposed, with biases; a shared one, dense layers before.
EXPERTS_BY_DAY = {"mixtral", "gpt_oss", "glm4_moe", "granitemoeshared", "qwen2_moe"}


@pytest.mark.parametrize("name", by_day(DIVIDED_MIXTURES, EXPERTS_BY_DAY))
def test_ranks_share_each_expert(tmp_path: Path, name: str) -> None:
    model_type, overrides = DIVIDED_MIXTURES[name]
    num_ranks = 3 if name == "olmoe" else 2  # of as many heads
    sizes = {"intermediate_size": 96} if name == "olmoe" else {}
    assert_divided(save_tiny_model(tmp_path, model_type, **(overrides | sizes)), num_ranks)


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("phi3", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")),
        ("gpt_neox", ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")),
    ],
)
def test_ranks_share_an_adapter(tmp_path: Path, name: str, modules: tuple[str, ...]) -> None:
    """On projections that are joined, one behind the other and head by head."""
    model_type, overrides = DENSE[name]
    path = save_tiny_model(tmp_path / "model", model_type, **overrides)
    saved = save_adapter(tmp_path / "adapter", path, modules=modules)
    weights = read_lora_weights(saved, torch.float32, max_rank=8)
    assert len(weights) == 2 * len(modules)
    assert_divided(path, 2, weights)


def test_more_ranks_than_heads_of_keys_and_values_share_them(tmp_path: Path) -> None:
    """With norms of all queries, and of all keys, at once."""
    path = save_tiny_model(tmp_path, "olmo2", intermediate_size=96, num_hidden_layers=1)
    assert_divided(path, 6)


@pytest.mark.parametrize(
    ("family", "told"),
    [
        (FUSED_IN_TORCH["gemma3n"], "its streams beside each other"),
        (FUSED_IN_TORCH["gemma4 experts"], "its experts beside the MLP"),
        (RECURRENT["lfm2"], "a state beside keys and values"),
        (LATENT["deepseek_v32"], "its choice of positions"),
    ],
    ids=["streams", "experts", "states", "positions"],
)
def test_what_is_not_divided_is_refused_by_name(
    tmp_path: Path, family: tuple[str, dict[str, Any]], told: str
) -> None:
    path = save_tiny_model(tmp_path, family[0], **family[1])
    with pytest.raises(ConfigError, match=f"tp=2 is not possible with .*: {told} cannot be"):
        divide(whole_config(path), 2)
