"""The C++ decoder: as close to transformers as bfloat16 allows, and independent of the batch."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from shared.errors import ConfigError
from shared.protocol.sampling import PoolingKind, PoolingParams
from tests.worker.engine.families import FUSED, FUSED_IN_TORCH, by_day
from tests.worker.engine.formats.quantized_copies import change_tensors
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    save_tiny_llama,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.native import native_library
from worker.engine.native.kernel_set import AVX512_BF16
from worker.engine.native.native_forward import NativeForward
from worker.engine.native.native_library import NativeLibrary, NativeUnavailable
from worker.engine.native.native_weights import PlacedWeights

needs_bfloat16 = pytest.mark.skipif(
    not torch.cpu.get_capabilities().get("avx512_bf16"), reason="needs AVX512-BF16"
)

MAX_ERROR = 0.05  # relative, of logits: what rounding activations to 8 bits leaves of these weights
SCORE = PoolingParams(PoolingKind.LOGITS, normalize=False)
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 7}


def native_rig(path: Path, **config: Any) -> Rig:
    rig = Rig(path, **({"dtype": "bfloat16", "cpu_kernels": "native"} | config))
    assert isinstance(rig.runner._forward._forward, NativeForward)
    return rig


def weights_of(rig: Rig) -> PlacedWeights:
    forward = rig.runner._forward._forward
    assert isinstance(forward, NativeForward)
    return forward._kept[0].placed


def save_rounded(path: Path, model_type: str, **overrides: Any) -> Path:
    """Weights that are the same in bfloat16."""
    return save_tiny_model(path, model_type, is_rounded=True, **overrides)


@pytest.fixture(scope="module")
def tiny_rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_rounded(tmp_path_factory.mktemp("rounded"), "llama")


# What else is in a layer, each once: biases, windows, ropes by layer and partial ones, scales,
# norms before, behind and beside, of heads, of variances, soft caps, chunks, activations.
DAILY = [
    "llama tied",
    "llama yarn mscale",
    "qwen2 windows",
    "phi3 longrope",
    "seed_oss",
    "granite",
    "gemma2",
    "gemma3",
    "gemma4 keys as values",
    "llama4 dense",
    "olmo",
    "olmo3 yarn",
    "cohere2",
    "stablelm parallel",
    "gpt_neox in turn",
    "phi norms",
    "ministral3",
    "nanochat biases",
    "falcon 40b",
    "gpt2",
    "nemotron",
    "hunyuan alpha",
]
IN_TORCH = {"gemma3n", "gemma4", "gemma4 experts", "llama4", "apertus"}
# Whose heads share the stream's size among them.
SIZED_BY_STREAM = {
    *("biogpt", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "hyperclovax", "jais2"),
    *("nanochat", "olmo", "opt", "persimmon", "phi", "starcoder2"),
}
# Whose scores of attention, not scaled, are as large as bfloat16 cannot tell apart.
ROUGH = {"gpt2 by layer", "hyperclovax", "hyperclovax without post norms"}


@needs_bfloat16
@pytest.mark.parametrize("family", by_day(sorted({*FUSED, *FUSED_IN_TORCH} - IN_TORCH), DAILY))
def test_every_family_of_the_fused_decoder(family: str, tmp_path: Path) -> None:
    model_type, overrides = (FUSED | FUSED_IN_TORCH)[family]
    path = save_rounded(tmp_path, model_type, **with_whole_heads(model_type, overrides))
    rig = native_rig(path, max_step_tokens=33, num_kv_tokens=320, max_running=8)
    shared = random_prompt(40, seed=2)
    prompts = {1: shared + random_prompt(5, seed=3)}
    prompts |= {run_id: random_prompt(length, run_id) for run_id, length in ((2, 1), (3, 33))}
    prompts |= {run_id: shared + random_prompt(8 * run_id, seed=run_id) for run_id in (4, 5, 6)}
    outputs = rig.run(
        *(make_add(run_id, ids, max_tokens=40, ignore_eos=True) for run_id, ids in prompts.items())
    )
    for run_id, prompt in prompts.items():
        max_error = MAX_ERROR * (1 + (family in ROUGH))
        assert_like_reference(path, rig, run_id, prompt + outputs[run_id], max_error)
    assert rig.channel.steps[-1].load.num_preemptions > 0


def with_whole_heads(model_type: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Of sixteen values or more."""
    sizes = {"hidden_size": 96} if model_type in SIZED_BY_STREAM else {}
    sizes |= {name: 16 for name in ("head_dim",) if name in overrides}
    sizes |= {name: 32 for name in ("global_head_dim",) if name in overrides}
    sizes |= {name: 96 for name in ("word_embed_proj_dim",) if name in overrides}
    return overrides | sizes


@needs_bfloat16
def test_a_classifiers_one_label(tmp_path: Path) -> None:
    path = save_rounded(tmp_path, "qwen3", is_classifier=True)
    prompts = [random_prompt(length, length) for length in (1, 40, 200)]
    adds = [make_add(run_id, ids, pooling=SCORE) for run_id, ids in enumerate(prompts)]
    together, in_torch = native_rig(path), Rig(path)
    together.run(*adds)
    in_torch.run(*adds)
    for run_id, add in enumerate(adds):
        alone = native_rig(path)
        alone.run(add)
        score = together.channel.finishes()[run_id].embedding
        assert alone.channel.finishes()[run_id].embedding == score
        expected = np.frombuffer(in_torch.channel.finishes()[run_id].embedding, np.float32)
        assert np.frombuffer(score, np.float32) == pytest.approx(expected, rel=0.1, abs=0.05)


@needs_bfloat16
@pytest.mark.parametrize("shape", [(2, 1, 64), (8, 1, 32), (6, 6, 80), (4, 2, 128), (3, 1, 256)])
def test_head_shapes(shape: tuple[int, int, int], tmp_path: Path) -> None:
    num_heads, num_kv_heads, head_dim = shape
    path = save_rounded(
        tmp_path,
        "llama",
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        initializer_range=0.1,
    )
    rig = native_rig(path, page_size=32, max_step_tokens=100, num_threads=2)
    prompt = random_prompt(230, seed=1)
    output = rig.run(make_add(1, prompt, max_tokens=20, ignore_eos=True))[1]
    assert_like_reference(path, rig, 1, prompt + output, MAX_ERROR)


@needs_bfloat16
@pytest.mark.parametrize(
    ("num_threads", "sampling"),
    [
        pytest.param(1, SEEDED, id="1-seeded"),
        pytest.param(2, {}, id="2-greedy"),
        pytest.param(1, {}, id="1-greedy", marks=pytest.mark.nightly),
        pytest.param(2, SEEDED, id="2-seeded", marks=pytest.mark.nightly),
    ],
)
def test_no_bit_depends_on_the_batch(
    tiny_rounded: Path, num_threads: int, sampling: dict[str, Any]
) -> None:
    prompt = random_prompt(137, seed=1)
    subject = make_add(1, prompt, max_tokens=60, ignore_eos=True, **sampling)
    company = [
        make_add(run_id, random_prompt(length, run_id), max_tokens=8 * run_id, ignore_eos=True)
        for run_id, length in enumerate([1, 5, 16, 40, 90, 130, 200, 290, 33, 64, 17], start=2)
    ]
    alone = native_rig(tiny_rounded)
    tokens = alone.run(subject)[1]
    rigs = [
        native_rig(tiny_rounded, max_step_tokens=size, num_threads=num_threads, num_kv_tokens=slots)
        for size, slots in ((16, 4096), (33, 4096), (512, 640))
    ]
    for rig in rigs:
        assert rig.run(*company[:5], subject, *company[5:])[1] == tokens
    assert rigs[2].channel.steps[-1].load.num_preemptions > 0
    resumed = native_rig(tiny_rounded, num_threads=num_threads)
    again = make_add(1, prompt, tokens[:31], max_tokens=60, ignore_eos=True, **sampling)
    assert resumed.run(again)[1] == tokens[31:]
    for rig in (*rigs, resumed):
        keys = [key for key in rig.logits if key[0] == 1]
        assert [key for key in keys if not torch.equal(rig.logits[key], alone.logits[key])] == []
    torch.set_num_threads(1)


@needs_bfloat16
def test_a_run_that_breaks_the_model_leaves_no_trace(tiny_rounded: Path, tmp_path: Path) -> None:
    others = [
        make_add(run_id, random_prompt(20 * run_id, run_id), max_tokens=30, ignore_eos=True)
        for run_id in (1, 2, 3)
    ]
    expected = native_rig(tiny_rounded, num_kv_tokens=320).run(*others)
    used = {token_id for add in others for token_id in random_prompt(20 * add.run_id, add.run_id)}
    used |= {token_id for token_ids in expected.values() for token_id in token_ids}
    poison = min(set(range(300)) - used)
    path = shutil.copytree(tiny_rounded, tmp_path / "model")
    embeddings = load_file(path / "model.safetensors")[name := "model.embed_tokens.weight"]
    embeddings[poison] = torch.nan
    change_tensors(path, **{name.replace(".", "__"): embeddings})
    rig = native_rig(path, num_kv_tokens=320)
    rig.run(others[0], make_add(9, [poison] * 200), *others[1:])
    assert rig.channel.finishes()[9].message is not None
    assert {run_id: rig.channel.tokens()[run_id] for run_id in (1, 2, 3)} == expected


@needs_bfloat16
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"dtype": "float32"}, "dtype is float32"),
        ({"page_size": 8}, "page_size=8 is not a multiple of 16"),
    ],
)
def test_what_is_not_native_is_refused(
    tiny_rounded: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"cpu_kernels=native is not possible: .*{reason}"):
        native_rig(tiny_rounded, **config)


@needs_bfloat16
def test_ours_are_used_where_the_processor_has_amx(
    tiny_rounded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose products by oneDNN give a row other bits in other company."""
    capabilities = {**torch.cpu.get_capabilities(), "amx_bf16": True, "amx_tile": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    native_rig(tiny_rounded, cpu_kernels="auto")


@needs_bfloat16
def test_heads_that_do_not_fit(tmp_path: Path) -> None:
    path = save_tiny_llama(tmp_path, head_dim=24)
    with pytest.raises(ConfigError, match="heads of 24 values"):
        native_rig(path)
    Rig(path, dtype="bfloat16")  # auto: torch


@needs_bfloat16
@pytest.mark.slow
@needs_bfloat16
def test_workers_that_start_together_compile_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a compiler that gives what it has been told to, once all of them are there."""
    NativeLibrary.load(AVX512_BF16)
    built = native_library._library_path(AVX512_BF16)
    compiler, calls, all_there = (tmp_path / name for name in ("compiler", "calls", "all_there"))
    compiler.write_text(
        f"#!/bin/sh\necho call >> {calls}\nwhile [ ! -e {all_there} ]; do sleep 0.01; done\n"
        f'for last; do :; done\ncp {built} "$last"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(native_library, "prebuilt_library", lambda _: tmp_path / built.name)
    num_started = threading.Barrier(3, action=all_there.touch)

    def start() -> str:
        num_started.wait()
        return NativeLibrary.load(AVX512_BF16).kernel_set.name

    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(start) for _ in range(3)]
        assert {each.result() for each in found} == {AVX512_BF16.name}
    assert calls.read_text().splitlines() == ["call"]


@pytest.mark.nightly  # that the library is built and used, all tests here show
def test_an_image_brings_a_library_and_no_compiler(
    tiny_rounded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / native_library.prebuilt_library(AVX512_BF16).name
    native_library.build(library, AVX512_BF16)
    monkeypatch.setattr(native_library, "prebuilt_library", lambda _: library)
    monkeypatch.setattr(native_library, "build", None)
    add = make_add(1, random_prompt(30, seed=1), max_tokens=20, ignore_eos=True)
    prebuilt = native_rig(tiny_rounded).run(add)
    monkeypatch.undo()
    assert prebuilt == native_rig(tiny_rounded).run(add)


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnavailable, match=r"there is no C\+\+ compiler"):
        NativeLibrary.load(AVX512_BF16)


def test_a_source_that_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel_set = replace(AVX512_BF16, flags=("-march=no-such-processor",))
    with pytest.raises(NativeUnavailable, match=r"does not compile decoder\.cpp: .*no-such-proc"):
        NativeLibrary.load(kernel_set)
    left = list((tmp_path / "jetflock").iterdir())
    assert [(path.suffix, path.stat().st_size) for path in left] == [(".lock", 0)]


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(NativeUnavailable, match="there is no home directory: set XDG_CACHE_HOME"):
        NativeLibrary.load(AVX512_BF16)
