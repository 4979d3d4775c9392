"""An EAGLE-3 head computes what is published, whoever has its pages; others are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from shared.errors import ConfigError
from tests.worker.engine.drafting.test_model_drafter import MIXED, fix_length
from tests.worker.engine.json_llama import save_json_llama
from tests.worker.engine.tiny_models import (
    Rig,
    random_prompt,
    save_eagle_head,
    save_tiny_llama,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.cache.req_to_token_pool import ReqToTokenPool
from worker.engine.drafting.draft_model import DraftHead
from worker.engine.drafting.model_drafter import ModelDrafter
from worker.engine.request.schedule_batch import ScheduledReq
from worker.engine.speculation.grammar_drafter import GrammarDrafter

LAYERS = (1, 2, 3)  # of 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_json_llama(tmp_path_factory.mktemp("target"), num_hidden_layers=4)


@pytest.fixture(scope="module")
def head(target: Path) -> Path:
    return save_eagle_head(target, target / "head")


class Reference:
    """The published computation, one token behind the other."""

    def __init__(self, target: Path, head: Path) -> None:
        from transformers import AutoModelForCausalLM

        auto_model: Any = AutoModelForCausalLM
        self._target = auto_model.from_pretrained(target, dtype=torch.float32)
        self._config = json.loads((head / "config.json").read_text())
        self._weights = load_file(head / "model.safetensors")

    @torch.no_grad()
    def logits(self, token_ids: Sequence[int], guesses: Sequence[int]) -> torch.Tensor:
        """Of what comes behind both: [vocab_size]."""
        told = self._target(torch.tensor([[*token_ids]]), output_hidden_states=True)
        streams = torch.cat([told.hidden_states[layer][0] for layer in LAYERS], dim=-1)
        embeddings = self._target.get_input_embeddings()(torch.tensor([*token_ids, *guesses]))
        given: list[torch.Tensor] = [*(streams @ self._weights["fc.weight"].T)[:-1]]
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        made = torch.empty(0)
        for position, embedding in enumerate(embeddings[1:]):
            own = given[position] if position < len(given) else made
            made = self._layer(position, embedding, own, keys, values)
        logits = self._weights["lm_head.weight"] @ self._norm("norm", made)
        everything = torch.full((self._config["vocab_size"],), -torch.inf)
        everything[torch.arange(len(logits)) + self._weights["d2t"]] = logits
        return everything

    def _layer(
        self,
        position: int,
        embedding: torch.Tensor,
        given: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> torch.Tensor:
        config, layer = self._config, "midlayer."
        x = torch.cat(
            [
                self._norm(f"{layer}input_layernorm", embedding),
                self._norm(f"{layer}hidden_norm", given),
            ]
        )
        query, key, value = (
            (self._weights[f"{layer}self_attn.{name}_proj.weight"] @ x).view(-1, config["head_dim"])
            for name in "qkv"
        )
        keys.append(self._rotated(key, position))
        values.append(value)
        num_shared = len(query) // len(key)
        query = self._rotated(query, position)
        seen = torch.stack(keys).repeat_interleave(num_shared, 1)  # [position + 1, heads, head_dim]
        scores = (query * seen).sum(-1) / config["head_dim"] ** 0.5
        kept = torch.stack(values).repeat_interleave(num_shared, 1)
        attended = (scores.softmax(0)[..., None] * kept).sum(0).flatten()
        stream = given + self._weights[f"{layer}self_attn.o_proj.weight"] @ attended
        x = self._norm(f"{layer}post_attention_layernorm", stream)
        gate, up = (self._weights[f"{layer}mlp.{name}_proj.weight"] @ x for name in ("gate", "up"))
        return stream + self._weights[f"{layer}mlp.down_proj.weight"] @ (functional.silu(gate) * up)

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        scale = (x.square().mean() + self._config["rms_norm_eps"]).rsqrt()
        return x * scale * self._weights[f"{name}.weight"]

    def _rotated(self, heads: torch.Tensor, position: int) -> torch.Tensor:
        size = self._config["head_dim"]
        angles = position / self._config["rope_theta"] ** (torch.arange(0, size, 2) / size)
        first, second = heads.chunk(2, dim=-1)
        cosines, sines = angles.cos(), angles.sin()
        return torch.cat(
            [first * cosines - second * sines, second * cosines + first * sines], dim=-1
        )


class RecordedHead:
    """What a rig's head has told, by the tokens and guesses of which it was asked."""

    def __init__(self, rig: Rig) -> None:
        drafter = rig.engine._scheduler._drafter
        assert isinstance(drafter, GrammarDrafter)
        assert isinstance(drafter._others, ModelDrafter)
        assert isinstance(drafter._others._model, DraftHead)
        self.told: dict[tuple[tuple[int, ...], tuple[int, ...]], torch.Tensor] = {}
        self.num_rows = 0
        self._guesses: dict[int, tuple[int, ...]] = {}
        self._logits: Callable[..., torch.Tensor] = drafter._others._model.logits
        vars(drafter._others._model)["logits"] = self._record

    def _record(self, entries: list[ScheduledReq], pool: ReqToTokenPool) -> torch.Tensor:
        logits = self._logits(entries, pool)
        asking = [entry for entry in entries if entry.num_samples]
        self.num_rows += sum(entry.num_tokens for entry in entries)
        for entry, row in zip(asking, logits, strict=True):
            run_id = entry.req.run_id
            before = self._guesses.get(run_id, ()) if entry.draft_ids else ()
            self._guesses[run_id] = (*before, *entry.draft_ids)
            key = tuple(entry.req.token_ids), self._guesses[run_id]
            self.told[key] = row.clone()
        return logits


@pytest.mark.parametrize(
    "config",
    [
        {"max_step_tokens": 24},
        {"num_kv_tokens": 160, "max_step_tokens": 32},
        {"dtype": "bfloat16", "cpu_kernels": "native"},
    ],
    ids=str,
)
def test_it_computes_what_is_published(target: Path, head: Path, config: dict[str, Any]) -> None:
    """Alone, in company, in chunks, behind prefixes of others, and after retractions."""
    rig = Rig(target, draft_model=str(head), **config)
    fix_length(rig)
    rig.engine._scheduler._reserve_ratio.value = 0.0
    recorded = RecordedHead(rig)
    prompts = [random_prompt(length, length) for length in (5, 40, 70)]
    adds = [
        make_add(run_id, prompt, max_tokens=24, ignore_eos=True, **MIXED[run_id])
        for run_id, prompt in enumerate(prompts)
    ]
    rig.run(*adds)
    num_rows = recorded.num_rows
    rig.run(make_add(9, prompts[2], max_tokens=5, ignore_eos=True, temperature=0.0))
    assert recorded.num_rows - num_rows < 70 or config.get("num_kv_tokens")
    load = rig.channel.steps[-1].load
    assert (load.num_preemptions > 0) == ("num_kv_tokens" in config)
    reference = Reference(target, head)
    assert {len(guesses) for _, guesses in recorded.told} == {0, 1, 2}
    for (token_ids, guesses), logits in list(recorded.told.items())[::7]:
        expected = reference.logits(token_ids, guesses)
        is_drafted = expected.isfinite()
        assert (logits.isfinite() == is_drafted).all()
        error = (logits - expected)[is_drafted].norm() / expected[is_drafted].norm()
        assert error < (0.1 if "dtype" in config else 1e-4)


def test_one_that_says_nothing_or_only_rubbish_changes_nothing(target: Path, head: Path) -> None:
    """A head of which no guess is a number is found out as one that guesses wrong."""
    bad = target / "bad"
    tensors = load_file(head / "model.safetensors")
    tensors["norm.weight"][:] = torch.nan
    _save(bad, tensors, json.loads((head / "config.json").read_text()))
    adds = [make_add(n, random_prompt(9, n), max_tokens=40, ignore_eos=True) for n in range(2)]
    rig = Rig(target, draft_model=str(bad))
    assert rig.run(*adds) == Rig(target).run(*adds)
    drafter = rig.engine._scheduler._drafter
    assert isinstance(drafter, GrammarDrafter)
    assert isinstance(drafter._others, ModelDrafter)
    assert drafter._others._length.length == 0


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"architectures": ["LlamaForCausalLMEagle"]}, "architectures=.*LlamaForCausalLMEagle'"),
        ({"architectures": ["DeepSeekMTPModel"]}, "architectures=.*DeepSeekMTPModel"),
        ({"vocab_size": 421}, "vocab_size is 421, and 420 of LlamaForCausalLM"),
        ({"target_hidden_size": 64}, "target_hidden_size is 64, and 48 of LlamaForCausalLM"),
        ({"draft_vocab_size": 900}, "draft_vocab_size=900 is more than vocab_size=420"),
        ({"num_hidden_layers": 2}, "num_hidden_layers=2 is not supported"),
        ({"norm_before_residual": True}, "norm_before_residual=True is not supported"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, r"is \[1, 2, 4\].* model's 4 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, r"must be 3 layers, not \[1, 2\]"),
        (
            {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": None},
            r"is not told, and would be \[2, 2, 1\]",
        ),
        ({"intermediate_size": 7}, "mlp.gate_proj.weight' has shape .*, config.json says"),
        ("fc.weight", "has no tensor 'model.fc.weight'"),
        ("midlayer.self_attn.k_proj.weight", "has no tensor .*self_attn.k_proj.weight"),
        ("d2t", "has no tensor 'model.d2t'"),
        ("high", "'d2t' names tokens .* to 99.*, and the model has 420"),
        ("more", "has no place for: 'midlayer.self_attn.q_norm.weight'"),
    ],
    ids=str,
)
def test_others_are_refused_before_weights_are_read(
    target: Path, head: Path, tmp_path: Path, values: dict[str, Any] | str, told: str
) -> None:
    tensors = load_file(head / "model.safetensors")
    config = json.loads((head / "config.json").read_text())
    match values:
        case "high":
            tensors["d2t"] += 99
            told = "'d2t' names tokens 100 to .*, and the model has 420"
        case "more":
            tensors["midlayer.self_attn.q_norm.weight"] = torch.ones(16)
        case str():
            del tensors[values]
        case _:
            config |= values
    path = _save(tmp_path / "head", tensors, config)
    with pytest.raises(ConfigError, match=told):
        Rig(target, draft_model=str(path))


def test_a_target_that_hands_out_no_streams_is_refused(head: Path, tmp_path: Path) -> None:
    granite = save_tiny_model(
        tmp_path / "granite", "granite", vocab_size=420, embedding_multiplier=2.0
    )
    with pytest.raises(ConfigError, match=r"embedding_scale is 1.0, and .* of GraniteForCausalLM"):
        Rig(granite, draft_model=str(head))
    small = save_tiny_llama(tmp_path / "small")
    with pytest.raises(ConfigError, match=r"draft_model=.*vocab_size is 420, and 300"):
        Rig(small, draft_model=str(head))


def _save(path: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    path.mkdir(exist_ok=True)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return path
