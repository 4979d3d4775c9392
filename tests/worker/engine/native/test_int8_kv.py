"""Keys and values in 8 bits: close to those in 16, and as independent of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from shared.errors import ConfigError
from tests.lora_adapters import load_weights
from tests.worker.checkpoints import DEMO_MODEL
from tests.worker.engine.demo_conversations import conversation_ids, needs_demo_model
from tests.worker.engine.native.test_native import SEEDED, native_rig, needs_bfloat16, save_rounded
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.cpu.forward_batch import ForwardBatch, ForwardMode
from worker.engine.native.kernel_set import AVX2, AVX512_BF16
from worker.engine.native.native_forward import NativeForward

pytestmark = needs_bfloat16

NUM_CONVERSATIONS = 20
MAX_KL, MIN_AGREEMENT = 0.0001, 0.995  # beside keys and values in bfloat16
MAX_ERROR = 0.06  # relative, of logits, beside float32


def int8_rig(path: Path, **config: Any) -> Rig:
    return native_rig(path, kv_dtype="int8", **config)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_rounded(tmp_path_factory.mktemp("rounded"), "llama")


@pytest.mark.parametrize("shape", [(2, 1, 64), (6, 6, 80), (3, 1, 256)])
def test_head_shapes_and_pages(shape: tuple[int, int, int], tmp_path: Path) -> None:
    num_heads, num_kv_heads, head_dim = shape
    path = save_rounded(
        tmp_path,
        "llama",
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        initializer_range=0.1,
    )
    rig = int8_rig(path, page_size=32, max_step_tokens=100, num_threads=2)
    prompt = random_prompt(230, seed=1)
    output = rig.run(make_add(1, prompt, max_tokens=20, ignore_eos=True))[1]
    assert_like_reference(path, rig, 1, prompt + output, MAX_ERROR)
    torch.set_num_threads(1)


@pytest.mark.parametrize("kernel_set", [AVX512_BF16.name, AVX2.name])
def test_windows(kernel_set: str, tmp_path: Path) -> None:
    path = save_rounded(tmp_path, "mistral", sliding_window=70)
    rig = int8_rig(path, max_step_tokens=48, cpu_kernels=kernel_set)
    prompt = random_prompt(200, seed=1)
    output = rig.run(make_add(1, prompt, max_tokens=20, ignore_eos=True))[1]
    assert_like_reference(path, rig, 1, prompt + output, MAX_ERROR)


@pytest.mark.parametrize(
    "sampling", [pytest.param({}, marks=pytest.mark.nightly), SEEDED], ids=["greedy", "seeded"]
)
def test_no_bit_depends_on_the_batch(tiny: Path, sampling: dict[str, Any]) -> None:
    """In chunks, in company, retracted, from cached prefixes, resumed elsewhere."""
    prompt = random_prompt(137, seed=1)
    subject = make_add(1, prompt, max_tokens=60, ignore_eos=True, **sampling)
    company = [
        make_add(run_id, random_prompt(length, run_id), max_tokens=8 * run_id, ignore_eos=True)
        for run_id, length in enumerate([1, 5, 16, 40, 90, 130, 200, 33], start=2)
    ]
    company.append(make_add(20, prompt[:100], max_tokens=4, ignore_eos=True))
    alone = int8_rig(tiny)
    tokens = alone.run(subject)[1]
    rigs = [
        int8_rig(tiny, max_step_tokens=size, num_threads=num_threads, num_kv_tokens=slots)
        for size, num_threads, slots in ((16, 1, 4096), (33, 2, 4096), (512, 2, 512))
    ]
    for rig in rigs:
        assert rig.run(*company, subject)[1] == tokens
    assert rigs[2].channel.steps[-1].load.num_preemptions > 0
    resumed = int8_rig(tiny)
    again = make_add(1, prompt, tokens[:31], max_tokens=60, ignore_eos=True, **sampling)
    assert resumed.run(again)[1] == tokens[31:]
    for rig in (*rigs, resumed):
        keys = [key for key in rig.logits if key[0] == 1]
        assert [key for key in keys if not torch.equal(rig.logits[key], alone.logits[key])] == []
    torch.set_num_threads(1)


def test_the_same_memory_holds_nearly_twice_the_tokens(tiny: Path) -> None:
    wide, narrow = (
        make(tiny, num_kv_tokens=None, kv_memory_bytes=1 << 20) for make in (native_rig, int8_rig)
    )
    layout, narrow_layout = (forward_of(rig)._kept[1].layout for rig in (wide, narrow))
    (group,) = layout.groups
    assert layout.bytes_per_token == 2 * 2 * group.num_kv_heads * group.head_dim * 2
    assert narrow_layout.bytes_per_token == 2 * 2 * group.num_kv_heads * (group.head_dim + 4)
    ratio = layout.bytes_per_token / narrow_layout.bytes_per_token
    assert num_kv_tokens(narrow) / num_kv_tokens(wide) == pytest.approx(ratio, rel=0.02)
    assert "keys and values are kept in int8" in narrow.loop._ready.remark
    assert "int8" not in wide.loop._ready.remark


def test_refused_where_our_cpp_does_not_compute(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kv_dtype=int8 is not possible.*cpu_kernels is torch"):
        Rig(tiny, dtype="bfloat16", cpu_kernels="torch", kv_dtype="int8")
    with pytest.raises(ConfigError, match=r"kv_dtype=int8 is not possible.*dtype is float32"):
        Rig(tiny, dtype="float32", kv_dtype="int8")
    general = save_tiny_model(tmp_path, "apertus")
    with pytest.raises(ConfigError, match=r"kv_dtype=int8 is not possible.*ApertusForCausalLM"):
        Rig(general, dtype="bfloat16", kv_dtype="int8")
    with pytest.raises(ConfigError, match="kv_dtype=int8 is for a CPU, with tp=1"):
        Rig(tiny, dtype="bfloat16", device="cpu", tp=2, kv_dtype="int8")


def test_scales_of_a_checkpoint_are_for_other_eight_bits(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = save_rounded(tmp_path, "llama")
    scale = {"model.layers.0.self_attn.k_scale": torch.ones(())}
    save_file(load_weights(path) | scale, path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"kv_dtype=int8 has no use .*self_attn.k_scale, "):
        int8_rig(path)


@needs_demo_model
def test_what_it_leaves_of_the_demo_model() -> None:
    """On conversations that it was not trained on."""
    reference, ours = (log_probs(make(DEMO_MODEL)) for make in (native_rig, int8_rig))
    kl = (reference.exp() * (reference - ours)).sum(-1).mean()
    agreement = (ours.argmax(-1) == reference.argmax(-1)).float().mean()
    print(f"int8 keys and values: KL {kl:.6f}, agreement {agreement:.4f}")
    assert 0 < float(kl) < MAX_KL
    assert float(agreement) > MIN_AGREEMENT


def forward_of(rig: Rig) -> NativeForward:
    forward = rig.runner._forward._forward
    assert isinstance(forward, NativeForward)
    return forward


def num_kv_tokens(rig: Rig) -> int:
    return rig.loop._ready.num_kv_tokens


def log_probs(rig: Rig) -> torch.Tensor:
    """[num_tokens, vocab_size], of all texts in a row."""
    forward = forward_of(rig)
    with torch.inference_mode():
        logits = [
            forward.logits(forward.hidden(one_prompt(text)))
            for text in conversation_ids(NUM_CONVERSATIONS)
        ]
    return functional.log_softmax(torch.cat(logits), -1)


def one_prompt(input_ids: torch.Tensor) -> ForwardBatch:
    """In the first pages, of 16 tokens."""
    num_tokens = len(input_ids)
    places = torch.arange(num_tokens)
    pages = torch.arange(-(-num_tokens // 16), dtype=torch.int32)
    return ForwardBatch(
        ForwardMode.EXTEND,
        input_ids,
        positions=places,
        out_loc=places,
        query_lens=[num_tokens],
        seq_lens=[num_tokens],
        page_table=pages[None],
        sample_idx=places,
    )
