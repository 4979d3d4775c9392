"""Inputs in 8 bits: what the format says, bit for bit, by every kernel set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from bench.products import Product, gguf_blocks
from shared.errors import ConfigError
from tests.gguf_files import matrices_as, stored_folder, write_gguf
from tests.lora_adapters import save_adapter
from tests.worker.checkpoints import DEMO_MODEL
from tests.worker.engine.demo_conversations import needs_demo_model
from tests.worker.engine.formats.quantized_copies import (
    change_config,
    change_tensors,
    save_dense,
    save_quantized,
)
from tests.worker.engine.lora.test_lora import add as add_with
from tests.worker.engine.native.test_coded_linear import (
    float8_in_blocks,
    int4_in_groups,
    int4_with_minima,
    int4_with_zeros,
    int6_in_groups,
    int8_by_channel,
    int8_with_zeros,
    uint8_with_zeros,
)
from tests.worker.engine.native.test_int8_kv import log_probs
from tests.worker.engine.native.test_kernel_sets import (
    EVERYWHERE,
    TILES,
    random_rows,
    run_both_ways,
)
from tests.worker.engine.native.test_native import (
    MAX_ERROR,
    native_rig,
    needs_bfloat16,
    save_rounded,
)
from tests.worker.engine.native.test_native_experts import GPT_OSS_GATE, make_experts, make_tokens
from tests.worker.engine.native.test_native_experts import reference as reference_experts
from tests.worker.engine.tiny_models import (
    Rig,
    assert_like_reference,
    random_prompt,
    save_tiny_model,
)
from tests.worker.engine_fakes import make_add
from worker.engine.formats.scaled_weight import InputCodes, ScaledWeight
from worker.engine.native.coded_layout import INT4, INT6, INT8, coded_layout, integer_layout
from worker.engine.native.kernel_set import AVX2, AVX512_BF16, KernelSet
from worker.engine.native.native_library import NativeLibrary
from worker.engine.native.native_products import NativeProducts
from worker.engine_link.engine_messages import LoadAdapter

MakeWeight = Callable[[int, int], ScaledWeight]
IN_BLOCKS, BY_TOKEN, STATIC = InputCodes(128), InputCodes(), InputCodes(scale=0.03)
SHAPES = ((100, 576), (33, 2054))  # outputs and inputs; 2054 are no whole quads
NUM_ROWS = 37


def q4_k(rows: int, columns: int) -> ScaledWeight:
    """Scales and minima in steps; of whole blocks of 256."""
    return gguf_blocks("Q4_K", (rows, -(-columns // 256) * 256))


KINDS: dict[MakeWeight, int] = {
    int8_by_channel: INT8,
    int8_with_zeros: INT8,
    uint8_with_zeros: INT8,
    int4_in_groups: INT4,
    int4_with_zeros: INT4,
    int4_with_minima: INT4,
    int6_in_groups: INT6,
    q4_k: INT4,
}


def reference(rows: torch.Tensor, weight: ScaledWeight, inputs: InputCodes) -> torch.Tensor:
    """Integers summed exactly in a span; spans added in float32, one rounding each."""
    weight, in_features = weight.by_row().without_steps(), weight.codes.shape[1]
    group_size = min(weight.block_columns, in_features)
    size = in_features if inputs.size is None else inputs.size
    span_size = size if inputs.size and group_size in (size, in_features) else group_size
    codes = weight.codes.double()
    total = torch.zeros(len(rows), len(codes))
    for first in range(0, in_features, span_size):
        span, group = slice(first, first + span_size), first // group_size
        together = rows if inputs.size is None else rows[:, span]
        scale = together.abs().amax(1) / 127
        if inputs.scale is not None:
            scale = torch.full_like(scale, inputs.scale)
        rounded = (rows[:, span] / scale[:, None]).nan_to_num(0.0)  # where all are zero
        rounded = rounded.round().clamp(-128, 127).double()
        sums = rounded @ codes[:, span].T
        if weight.zeros is not None:
            sums -= rounded.sum(1)[:, None] * weight.zeros[:, group].double()
        scales = weight.scales[:, group] * scale[:, None]
        total = (sums.float().double() * scales.double() + total.double()).float()
        if weight.minima is not None:
            added = (rounded.sum(1).float() * scale)[:, None].double()
            total = (total.double() - added * weight.minima[:, group].double()).float()
    return total


@pytest.mark.parametrize("kernel_set", EVERYWHERE)
@pytest.mark.parametrize("make", KINDS)
def test_products_are_those_of_the_format(make: MakeWeight, kernel_set: KernelSet) -> None:
    torch.manual_seed(1)
    for shape in SHAPES:
        weight = make(*shape)
        rows = random_rows(NUM_ROWS, weight.codes.shape[1]) * torch.rand(NUM_ROWS, 1)
        rows = rows.bfloat16().float()
        rows[3] = 0.0
        for inputs in (IN_BLOCKS, BY_TOKEN, STATIC):
            layout = integer_layout(weight, inputs)
            assert layout is not None
            assert layout.layout == KINDS[make]
            products = Product(weight, 2, kernel_set, inputs)(rows)
            expected = reference(rows, weight, inputs)
            assert torch.equal(products, expected)


@pytest.mark.parametrize("kernel_set", EVERYWHERE)
@pytest.mark.parametrize("make", [int8_by_channel, int4_with_zeros, q4_k])
def test_a_row_does_not_depend_on_the_others(make: MakeWeight, kernel_set: KernelSet) -> None:
    """Alone, in company, on one thread and on two."""
    torch.manual_seed(2)
    weight = make(100, 1100)
    rows = random_rows(200, weight.codes.shape[1])
    one_thread, two_threads = (Product(weight, n, kernel_set, IN_BLOCKS) for n in (1, 2))
    together = two_threads(rows)
    for start, count in ((0, 1), (7, 2), (50, 12), (3, 16), (80, 17), (11, 33), (40, 97)):
        part = rows[start : start + count]
        assert torch.equal(one_thread(part), together[start : start + count])


@pytest.mark.parametrize("kernel_set", EVERYWHERE)
@pytest.mark.parametrize("inputs", [IN_BLOCKS, BY_TOKEN, STATIC])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_no_number_stays_alone(
    value: float, inputs: InputCodes, kernel_set: KernelSet
) -> None:
    product = Product(int8_by_channel(33, 102), 1, kernel_set, inputs)
    rows = random_rows(20, 102)
    expected = product(rows)
    rows[11, 5] = value
    products = product(rows)
    assert products[11].isnan().all()
    assert torch.equal(products[:11], expected[:11])
    assert torch.equal(products[12:], expected[12:])


@pytest.mark.parametrize("kernel_set", EVERYWHERE)
@pytest.mark.parametrize("num_bits", [8, 4])
def test_the_largest_sums(num_bits: int, kernel_set: KernelSet) -> None:
    """No product of two neighbours is cut off, and no sum wraps."""
    lowest = -(1 << (num_bits - 1))
    codes = torch.full((32, 16384), lowest, dtype=torch.int8)
    codes[:, 1::2] = -lowest - 1
    weight = ScaledWeight(codes, torch.ones(32, 1), 1, 16384)
    rows = torch.ones(3, 16384)
    rows[:, 1::2] = -1.0
    rows[1] *= -1.0
    rows = rows.repeat(4, 1)  # more than are multiplied without tiles
    products = Product(weight, 1, kernel_set, InputCodes(scale=2.0**-7))(rows)
    assert torch.equal(products, reference(rows, weight, InputCodes(scale=2.0**-7)))


def test_weights_without_integers_or_without_quads() -> None:
    codes = torch.randint(-8, 8, (32, 60), dtype=torch.int8)
    in_sixes = ScaledWeight(codes, torch.ones(32, 10), 1, 6)
    wide = ScaledWeight(torch.randint(0, 999, (32, 64)).short(), torch.ones(32, 1), 1, 64)
    halves = replace(in_sixes, block_columns=60, scales=torch.ones(32, 1))
    halves = replace(halves, zeros=torch.full((32, 1), 0.5))
    long = ScaledWeight(codes.repeat(1, 70000), torch.ones(32, 1), 1, 70000 * 60)
    for weight in (float8_in_blocks(32, 128), in_sixes, wide, halves):
        assert integer_layout(weight, IN_BLOCKS) is None
    assert integer_layout(long, BY_TOKEN) is None
    assert coded_layout(long) is not None


def save_w8a8(source: Path, target: Path, **inputs: object) -> Path:
    """As llm-compressor writes it; `inputs`: of input_activations."""
    path = save_quantized(source, target, "int8 by channel")
    section = json.loads((path / "config.json").read_text())["quantization_config"]
    told = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    section["config_groups"]["group_0"]["input_activations"] = told | inputs
    change_config(path, quantization_config=section)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes that are no whole quads among them."""
    path = tmp_path_factory.mktemp("source") / "model"
    return save_rounded(path, "llama", intermediate_size=162, initializer_range=0.1)


@pytest.fixture(scope="module")
def w8a8(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_w8a8(source, tmp_path_factory.mktemp("w8a8") / "model")


def save_gguf(path: Path) -> Path:
    """With heads in 8 bits, as such files have them."""
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_attention_heads": 4,
    }
    model = save_tiny_model(path / "model", "llama", **sizes)
    choose = matrices_as(gguf.GGMLQuantizationType.Q8_0)
    return stored_folder(write_gguf(model, path / "model.gguf", choose))


def values_of(rig: Rig) -> torch.Tensor:
    return torch.stack(list(rig.logits.values()))


@needs_bfloat16
@pytest.mark.parametrize("kind", ["w8a8", "int4", "gguf"])
def test_a_model_has_the_same_bits_by_every_kernel_set(
    kind: str, source: Path, w8a8: Path, tmp_path: Path
) -> None:
    """Alone and in company, in chunks, on one thread and on two; with its head in 16 bits."""
    path = {"w8a8": w8a8, "int4": source}.get(kind) or save_gguf(tmp_path)
    config: dict[str, Any] = {}
    if kind == "int4":
        config = {"quantization": "int4", "cpu_activations": "int8"}
    rigs = [run_both_ways(path, each, **config) for each in (AVX512_BF16, AVX2, TILES)]
    assert "activations are rounded to int8" in rigs[0].loop._ready.remark
    assert torch.equal(values_of(rigs[1]), values_of(rigs[0]))
    assert torch.equal(values_of(rigs[2]), values_of(rigs[0]))


@needs_bfloat16
def test_declared_inputs_are_close_to_what_the_checkpoint_stands_for(
    source: Path, w8a8: Path, tmp_path: Path
) -> None:
    """Other bits than with inputs in 16; with an adapter, too."""
    dense_path = save_dense(source, tmp_path / "dense", "int8 by channel")
    in_16_bits = save_quantized(source, tmp_path / "16", "int8 by channel")
    prompt = random_prompt(70, 1)
    rigs = [native_rig(path) for path in (w8a8, in_16_bits)]
    for rig in rigs:
        output = rig.run(make_add(1, prompt, max_tokens=20, ignore_eos=True))[1]
        assert_like_reference(dense_path, rig, 1, prompt + output, MAX_ERROR)
    assert not torch.equal(*(next(iter(rig.logits.values())) for rig in rigs))
    adapter = save_adapter(tmp_path / "adapter", source, size=0.1)
    tuned = native_rig(w8a8)
    tuned.run(LoadAdapter("one", str(adapter)), add_with(1, prompt, "one"))
    assert not torch.equal(*(next(iter(rig.logits.values())) for rig in (tuned, rigs[0])))


@needs_bfloat16
def test_static_scales_are_the_checkpoints(source: Path, tmp_path: Path) -> None:
    path = save_w8a8(source, tmp_path / "model", dynamic=False, strategy="tensor")
    with pytest.raises(ConfigError, match=r"has no 'model.*input_scale'"):
        native_rig(path)
    scales = _input_scales(path, 0.05)
    change_tensors(path, **scales)
    rig, other = (native_rig(path) for _ in range(2))
    prompt = random_prompt(40, 1)
    output = rig.run(make_add(1, prompt, max_tokens=20, ignore_eos=True))[1]
    dense_path = save_dense(source, tmp_path / "dense", "int8 by channel")
    assert_like_reference(dense_path, rig, 1, prompt + output, 3 * MAX_ERROR)
    change_tensors(path, **_input_scales(path, 2.0))
    other = native_rig(path)
    other.run(make_add(1, prompt, max_tokens=20, ignore_eos=True))
    assert not torch.equal(values_of(other)[0], values_of(rig)[0])
    change_tensors(path, **{next(iter(scales)): torch.zeros(1)})
    with pytest.raises(ConfigError, match=r"has 0.0 in 'model.*input_scale', which is not above"):
        native_rig(path)


def _input_scales(path: Path, value: float) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    stored = load_file(path / "model.safetensors")
    modules = [name[: -len("weight_scale")] for name in stored if name.endswith("weight_scale")]
    return {f"{each}input_scale".replace(".", "__"): torch.tensor([value]) for each in modules}


@pytest.mark.parametrize(
    "inputs",
    [
        {"symmetric": False},
        {"num_bits": 4},
        {"type": "float"},
        {"strategy": "channel"},
    ],
)
@needs_bfloat16
def test_inputs_that_we_do_not_round_stay_in_16_bits(
    inputs: dict[str, object], source: Path, tmp_path: Path
) -> None:
    rig = native_rig(save_w8a8(source, tmp_path / "model", **inputs))
    assert "activations" not in rig.loop._ready.remark


@needs_bfloat16
@pytest.mark.parametrize("num_tokens", [1, 230])
def test_experts(num_tokens: int) -> None:
    experts = make_experts(int4_with_minima)
    tokens = make_tokens(num_tokens)
    outputs = []
    for kernel_set in (AVX512_BF16, AVX2):
        products = NativeProducts(NativeLibrary.load(kernel_set), 2, IN_BLOCKS)
        outputs.append(products.make(experts, GPT_OSS_GATE)(*tokens))
        assert products.integer_share == pytest.approx(0.8)
    assert torch.equal(*outputs)
    expected = reference_experts(experts, GPT_OSS_GATE, tokens)
    assert (outputs[0] - expected).abs().max() <= 0.03 * expected.abs().max()


@needs_bfloat16
def test_refused_where_nothing_is_rounded(source: Path, tmp_path: Path) -> None:
    def refused(sentence: str, path: Path = source, **config: Any) -> None:
        wanted = f"cpu_activations=int8 is {sentence}"
        with pytest.raises(ConfigError, match=wanted):
            Rig(path, **({"dtype": "bfloat16", "cpu_activations": "int8"} | config))

    refused("not possible: weights are in 16 bits")
    refused("not possible: .* no weights are integers", quantization="fp8")
    refused("not possible: .* cpu_kernels is torch", quantization="int8", cpu_kernels="torch")
    refused("not possible: .* dtype is float32", quantization="int8", dtype="float32")
    refused("for models that make tokens", quantization="int8", device="cpu", tp=2)
    apertus = save_tiny_model(tmp_path / "apertus", "apertus")
    refused(r"not possible: .*\(ApertusForCausalLM\)", apertus)


# In nats, beside weights and activations in 16 bits, and tokens with the same likeliest one.
QUALITY: dict[str, tuple[float, float]] = {"int8": (0.002, 0.99), "int4": (0.05, 0.95)}


@needs_bfloat16
@needs_demo_model
@pytest.mark.parametrize("kind", QUALITY)
def test_what_it_leaves_of_the_demo_model(kind: str) -> None:
    """On conversations that it was not trained on."""
    expected = log_probs(native_rig(DEMO_MODEL))
    rig = native_rig(DEMO_MODEL, quantization=kind, cpu_activations="int8")
    ours = log_probs(rig)
    kl = float((expected.exp() * (expected - ours)).sum(-1).mean())
    agreement = float((ours.argmax(-1) == expected.argmax(-1)).float().mean())
    print(f"{kind}, activations in int8: KL {kl:.6f}, agreement {agreement:.4f}")
    max_kl, min_agreement = QUALITY[kind]
    assert 0 < kl < max_kl
    assert agreement > min_agreement
