"""Attention over latents, of positions that an indexer chooses."""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import ConfigError
from tests.worker.engine.families import LATENT, WINDOW
from tests.worker.engine.tiny_models import Rig, random_prompt, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.engine.cpu import torch_attention
from worker.engine.cpu.torch_attention import TorchAttentionBackend
from worker.engine.layers.kv_layout import KVGroup, KVLayout
from worker.engine.loading import model_limits
from worker.engine.models.decoder_config import DecoderConfig, with_latents
from worker.engine.models.latent import indexer
from worker.engine.models.norms import NoNorm
from worker.engine.models.registry import FUSED_ARCHITECTURES, read_model_config
from worker.engine_link.engine_config import EngineConfig

PROMPT = random_prompt(90, seed=4)  # far more than are chosen
LATENT_DIM, INDEX_DIM = 28, 20  # values that a token keeps


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in ("deepseek_v32", "glm_moe_dsa"):
        model_type, overrides = LATENT[name]
        made[name] = save_tiny_model(tmp_path_factory.mktemp(name), model_type, **overrides)
    return made


def logits(path: Path, prompt: list[int] = PROMPT) -> torch.Tensor:
    """Behind the prompt."""
    rig = Rig(path)
    rig.run(make_add(1, prompt, max_tokens=1, ignore_eos=True))
    return rig.logits[1, len(prompt)]


def told(path: Path, copy: Path, **values: Any) -> Path:
    """The same model, with other values in its config.json."""
    shutil.copytree(path, copy)
    config = copy / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))
    return copy


def moves(path: Path, without: Path | None = None) -> bool:
    """Whether logits differ from those of a fresh, whole model."""
    return bool((whole(path) - logits(without or path)).norm() / whole(path).norm() > 1e-3)


@functools.cache
def whole(path: Path) -> torch.Tensor:
    return logits(path)


@pytest.mark.parametrize("part", ["weights", "norm", "rotation", "pairs", "relu", "choice"])
def test_a_part_of_an_indexer_that_is_left_out_moves_the_logits(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    path = paths["deepseek_v32"]
    whole(path)  # while nothing is left out
    choose = TorchAttentionBackend.choose

    def unweighted(self: TorchAttentionBackend, q: Any, weights: Any, k: Any, idx: int) -> None:
        choose(self, q, torch.ones_like(weights), k, idx)

    match part:
        case "weights":
            monkeypatch.setattr(TorchAttentionBackend, "choose", unweighted)
        case "norm":
            monkeypatch.setattr(indexer, "FloatNorm", lambda *_: NoNorm())
        case "rotation":
            monkeypatch.setattr(indexer, "rotate", lambda heads, *_: heads)
        case "pairs":
            swap_pairs(monkeypatch)
        case "relu":
            monkeypatch.setattr(torch.Tensor, "relu_", lambda scores: scores)
        case "choice":
            monkeypatch.setattr(
                torch_attention, "_is_not_best", lambda each, _: torch.zeros_like(each).bool()
            )
    assert moves(path)


def swap_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "DeepseekV32ForCausalLM"
    read = FUSED_ARCHITECTURES[name]

    def swapped(*args: Any) -> DecoderConfig:
        model = read(*args)
        assert model.latent is not None
        assert model.latent.indexer is not None
        other = replace(model.latent.indexer, has_neighbours=True)
        return with_latents(model, replace(model.latent, indexer=other))

    monkeypatch.setitem(FUSED_ARCHITECTURES, name, swapped)


def test_what_a_layer_sees_that_does_not_choose_matters(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    """It sees what the layer before it chose; a last one that goes on with that moves logits."""
    path = paths["glm_moe_dsa"]
    types = ["full", "shared", "shared"]
    copy = told(path, tmp_path / "copy", indexer_types=types)
    drop(copy, "model.layers.2.self_attn.indexer.")
    assert moves(path, copy)
    assert moves(path, told(path, tmp_path / "all", index_topk=len(PROMPT)))


def drop(path: Path, part: str) -> None:
    weights = load_file(path / "model.safetensors")
    kept = {name: each for name, each in weights.items() if part not in name}
    assert len(kept) < len(weights)
    save_file(kept, path / "model.safetensors", {"format": "pt"})


def test_a_text_of_no_more_than_are_chosen_is_that_of_dense_attention(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    """Bit for bit."""
    path = paths["deepseek_v32"]
    names = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    dense = told(path, tmp_path / "dense", **names)
    drop(dense, ".indexer.")
    assert torch.equal(logits(path, PROMPT[:WINDOW]), logits(dense, PROMPT[:WINDOW]))
    assert not torch.equal(logits(path), logits(dense))
    all_of_it = told(path, tmp_path / "all", index_topk=len(PROMPT))
    assert torch.equal(logits(all_of_it), logits(dense))


def test_of_equal_scores_the_first_are_chosen() -> None:
    scores = torch.tensor([[0.0, 2.0, 0.0, -1.0, 0.0, 3.0], [-torch.inf] * 4 + [1.0, 1.0]])
    left_out = torch_attention._is_not_best(scores, 4)
    assert left_out[0].tolist() == [False, False, False, True, True, False]
    assert left_out[1, 4:].tolist() == [False, False]


def test_keys_of_indexers_are_a_group_of_pages_of_their_own(paths: dict[str, Path]) -> None:
    """GLM's layers that do not choose keep none."""
    model = read_model_config(paths["glm_moe_dsa"])
    layout = KVLayout.of(model.attention_layers, torch.float32, 16)
    assert layout.groups == (KVGroup(3, 1, LATENT_DIM, 1), KVGroup(2, 1, INDEX_DIM, 1))
    num_bytes = 4 * (3 * LATENT_DIM + 2 * INDEX_DIM)
    assert model.kv_bytes_per_token(torch.float32) == num_bytes
    pool = Rig(paths["glm_moe_dsa"]).runner._runner._kv_cache_pool
    memory = sum(each.nbytes for each in pool._data)
    assert memory == (pool.num_pages + 1) * pool.page_size * num_bytes


def test_all_matrices_count_as_memory(paths: dict[str, Path]) -> None:
    for path in paths.values():
        weights = load_file(path / "model.safetensors").values()
        matrices = sum(each.numel() for each in weights if each.ndim > 1)
        assert read_model_config(path).num_parameters == matrices


def test_a_gpu_is_refused(paths: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="GlmMoeDsaForCausalLM is not possible on a GPU"):
        model_limits.check_on_gpu(EngineConfig(), read_model_config(paths["glm_moe_dsa"]))


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("deepseek_v32", {"index_topk": 0}, "'index_topk' must be a positive integer, not 0"),
        ("deepseek_v32", {"index_head_dim": 6}, "'index_head_dim' must be an integer of at least"),
        ("deepseek_v32", {"rope_interleave": False}, "rope_interleave=False is not supported"),
        ("deepseek_v32", {"indexer_rope_interleave": True}, "indexer_rope_interleave=True"),
        ("deepseek_v32", {"layer_types": ["full_attention"] * 2}, "'layer_types' must say indexed"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "'indexer_types' must say full or shared"),
        ("glm_moe_dsa", {"indexer_types": ["shared", "full", "full"]}, "the first layer without"),
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense(
    paths: dict[str, Path], tmp_path: Path, name: str, values: dict[str, Any], sentence: str
) -> None:
    copy = told(paths[name], tmp_path / "copy", **values)
    with pytest.raises(ConfigError, match=sentence):
        read_model_config(copy)


def test_queries_without_a_latent_are_refused(paths: dict[str, Path], tmp_path: Path) -> None:
    copy = told(paths["deepseek_v32"], tmp_path / "copy", q_lora_rank=None)
    with pytest.raises(ConfigError, match="q_lora_rank"):
        read_model_config(copy)
