"""What is refused or told of a model whose layers keep a state beside keys and values."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.recurrent_text import (
    DEFAULT_CONTEXT_LEN,
    RECURRENT_ARCHITECTURES,
    keeps_states,
)
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import ConfigError
from shared.protocol.finish import FinishReason
from shared.protocol.request import KeepPrefix
from shared.protocol.sampling import BeamParams
from tests.lora_adapters import save_adapter
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from tests.worker.engine.families import RECURRENT
from tests.worker.engine.models.test_transformers_models import architectures_of
from tests.worker.engine.tiny_models import Rig, random_prompt, save_recurrent
from tests.worker.engine_fakes import make_add
from worker.engine.cache.state_snapshots import num_snapshots
from worker.engine.loading import memory_check
from worker.engine.loading.memory_check import check_memory, weight_bytes
from worker.engine.loading.model_report import report_on, report_on_gpu
from worker.engine.models.registry import read_model_config
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import AdapterLoaded, EngineReady, LoadAdapter

STATE_BYTES = 3 * 2 * 48 * 4  # three convolutions, which keep two inputs of 48 values in float32


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_recurrent(tmp_path_factory.mktemp("lfm2"), "lfm2")


@pytest.mark.parametrize(
    ("num_slots", "remark"),
    [
        (None, r"prefixes are cached with up to 256 such states, 0\.3 MiB \(state_snapshots\)"),
        (3, r"prefixes are cached with up to 3 such states, 0\.0 MiB \(state_snapshots\)"),
        (0, "no prefix is cached, for there is no room for states at page borders"),
    ],
)
def test_prefixes_are_kept_where_states_are(path: Path, num_slots: int | None, remark: str) -> None:
    """As many as there are pages, where memory has room for more."""
    rig = Rig(path, max_pinned_share=0.5, state_snapshots=num_slots)
    prompt = random_prompt(200, seed=3)
    keep = KeepPrefix(seconds=600)
    for run_id in (1, 2):
        rig.run(make_add(run_id, prompt, max_tokens=4, ignore_eos=True, keep=keep))
    load, is_kept = rig.channel.steps[-1].load, num_slots != 0
    assert (load.num_prefix_queries, load.num_prefix_hits) == (400, 192 * is_kept)
    assert (load.num_free_tokens, load.num_pinned_tokens) == (load.num_kv_tokens, 192 * is_kept)
    assert load.num_snapshots == is_kept
    ready = next(event for event in rig.channel.events if isinstance(event, EngineReady))
    assert (ready.has_prefixes, ready.num_pinnable_tokens) == (is_kept, 2048 * is_kept)
    assert ready.num_snapshot_slots == (256 if num_slots is None else num_slots)
    assert ready.remark.startswith("a request keeps 1.1 KiB of state beside its keys and values")
    assert re.search(remark, ready.remark)


def test_states_take_what_is_left_of_the_memory() -> None:
    """At most a quarter, and a GiB; what is configured is counted before anything is loaded."""
    nums = []
    for available in (100, 4000, 8 << 30):
        nums.append(num_snapshots(EngineConfig(), 10, 1 << 30, available, 80))
        nums.append(num_snapshots(EngineConfig(), 10, 50, available, 90))
    assert nums == [2, 1, 100, 50, (1 << 30) // 10, 50]
    assert num_snapshots(EngineConfig(), 10, 50, 8 << 30, 9 << 30) == 0
    assert num_snapshots(EngineConfig(state_snapshots=70), 10, 50, 8 << 30, 9 << 30) == 70
    with pytest.raises(ConfigError, match="state_snapshots must be at least 0, not -1"):
        EngineConfig(state_snapshots=-1).check()


def test_guesses_are_refused(path: Path) -> None:
    sentence = "speculate=ngram is not possible with Lfm2ForCausalLM: the state of its recurrent"
    with pytest.raises(ConfigError, match=sentence):
        Rig(path, speculate="ngram")


def test_nothing_is_guessed_where_no_token_can_be_taken_back(path: Path) -> None:
    """Not what a grammar leaves one way for, either; with prefixes, and without."""
    for num_slots in (None, 0):
        assert Rig(path, state_snapshots=num_slots).engine._scheduler._drafter is None


def test_states_count_as_memory_of_a_gpu(path: Path) -> None:
    model, config = read_model_config(path), EngineConfig(gpu_memory_utilization=1.0, max_running=9)
    needed = weight_bytes(model, torch.float32) + 9 * STATE_BYTES
    for num_bytes, is_short in ((needed, False), (needed - 1, True)):
        report = report_on_gpu(config, model, torch.float32, LateDevice(num_bytes))
        assert bool(report.shortage) == is_short
    sentence = r"cuda_graph_tokens=\(16,\) is not possible with Lfm2ForCausalLM: with recurrent"
    with pytest.raises(ConfigError, match=sentence):
        GpuRig(path, LateDevice(), cuda_graph_tokens=(16,))


def test_several_ranks_are_refused(path: Path) -> None:
    sentence = "tp=2 is not possible with Lfm2ForCausalLM: a state beside keys and values"
    with pytest.raises(ConfigError, match=sentence):
        GpuRig(path, None, tp=2, device="cpu")


def test_our_code_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cpu_kernels=native is not possible: .* torch alone"):
        Rig(path, cpu_kernels="native")
    with pytest.raises(ConfigError, match=r"kv_dtype=int8 is not possible: .* torch alone"):
        Rig(path, kv_dtype="int8")


def test_an_adapter_is_refused(path: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path, path, modules=("q_proj",))
    rig = Rig(path)
    rig.run(LoadAdapter("one", str(adapter)))
    (loaded,) = (event for event in rig.channel.events if isinstance(event, AdapterLoaded))
    assert "adapters are not supported with Lfm2ForCausalLM" in loaded.error


def test_beams_are_refused(path: Path) -> None:
    rig = Rig(path)
    rig.run(
        make_add(1, [5, 6], beam=BeamParams(2, 2), max_tokens=4), make_add(2, [5], max_tokens=4)
    )
    finish = rig.channel.finishes()[1]
    assert finish.reason is FinishReason.ERROR
    assert finish.message is not None
    assert finish.message.startswith("beam search is not possible with this model")
    assert len(rig.channel.tokens()[2]) == 4


def test_states_count_as_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_model_config(path)
    assert model.state_bytes == STATE_BYTES
    assert "a state (of a request, or kept for others) 1.1 KiB" in report_on(path).need
    config = EngineConfig(
        model_path=str(path), max_running=1 << 20, max_step_tokens=1 << 20, num_kv_tokens=16
    )
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: 1 << 30)
    sentence = r"recurrent states 1\.12 GiB \(max_running=1048576\), and 1\.00 GiB are available"
    with pytest.raises(ConfigError, match=sentence):
        check_memory(config, model, torch.float32, 2048)
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: 2 << 30)
    check_memory(config, model, torch.float32, 2048)
    sentence = r"states 2\.25 GiB \(max_running=1048576, state_snapshots=1048576\), and"
    with pytest.raises(ConfigError, match=sentence):
        check_memory(
            dataclasses.replace(config, state_snapshots=1 << 20), model, torch.float32, 2048
        )


def test_without_keys_and_values_tokens_take_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are counted all the same: requests and prefixes are told by them."""
    path = save_recurrent(tmp_path, "mamba2")
    rig = Rig(path, num_kv_tokens=None, max_running=2)
    prompt = random_prompt(200, seed=3)
    for run_id in (1, 2):
        rig.run(make_add(run_id, prompt, max_tokens=4, ignore_eos=True))
    load = rig.channel.steps[-1].load
    assert load.num_kv_tokens == load.num_free_tokens == 2 * (512 + 16)
    assert (load.num_prefix_hits, load.num_preemptions) == (192, 0)
    ready = next(event for event in rig.channel.events if isinstance(event, EngineReady))
    assert not ready.keeps_kv
    assert re.match(r"a request keeps [\d.]+ KiB of state, but no keys and values;", ready.remark)
    with pytest.raises(ConfigError, match="kv_memory_bytes=4096 is not possible with Mamba2"):
        Rig(path, num_kv_tokens=None, kv_memory_bytes=4096)
    need = report_on(path).need
    assert re.fullmatch(r"weights take .* GiB, a state .* KiB; .* GiB are available", need)
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: 1 << 10)
    with pytest.raises(ConfigError, match=r"take 0.00 GiB in float32, recurrent states 0.00 GiB"):
        check_memory(EngineConfig(), read_model_config(path), torch.float32, 2048)
    values = json.loads((path / "config.json").read_text())
    del values["max_position_embeddings"]
    (path / "config.json").write_text(json.dumps(values))
    assert read_model_config(path).max_context_len == DEFAULT_CONTEXT_LEN
    assert ModelFiles.read(path).max_context_len == DEFAULT_CONTEXT_LEN


def test_the_card_knows_who_keeps_states(path: Path) -> None:
    assert architectures_of(RECURRENT) == RECURRENT_ARCHITECTURES
    config = json.loads((path / "config.json").read_text())
    assert keeps_states(config)
    assert ModelFiles.read(path).card("m", TokenizerBundle({})).keeps_states
    assert not keeps_states(config | {"layer_types": ["full_attention"] * 4})
    assert not keeps_states(config | {"architectures": ["Qwen3ForCausalLM"]})
    text = {"model_type": "qwen3_5_moe_text", "layer_types": ["linear_attention"]}
    reader = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": text}
    assert keeps_states(reader)
    assert not keeps_states(reader | {"text_config": {"model_type": "qwen3_text"}})
