"""Experts in codes: right, and a token's outputs are the same in any company."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.worker.engine.native.test_coded_linear import (
    float4_in_blocks,
    int4_with_minima,
    int4_with_zeros,
    int5_with_minima,
    int8_by_channel,
)
from tests.worker.engine.native.test_kernel_sets import TILES
from tests.worker.engine.native.test_native import needs_bfloat16
from worker.engine.formats.scaled_weight import ScaledWeight
from worker.engine.models.decoder_weights import Projection
from worker.engine.models.expert_weights import ExpertLayer, ExpertWeights, Gate, SiluGate
from worker.engine.models.layer_config import ClampedGate
from worker.engine.native.kernel_set import AVX2, AVX512, AVX512_BF16, KernelSet
from worker.engine.native.native_library import NativeLibrary
from worker.engine.native.native_products import NativeProducts

HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_EXPERTS, NUM_CHOSEN = 96, 72, 5, 2
NUM_TOKENS = 230  # some expert has more than one slab
GPT_OSS_GATE = ClampedGate(slope=1.702, bound=7.0)
MAX_ERROR = 0.01  # relative: activations and outputs are rounded to bfloat16

MakeWeight = Callable[[int, int], torch.Tensor | ScaledWeight]


def dense(rows: int, columns: int) -> torch.Tensor:
    return (torch.randn(rows, columns) * 0.05).to(torch.bfloat16)


def make_experts(make: MakeWeight) -> list[ExpertWeights]:
    """One of them without codes."""
    torch.manual_seed(3)
    made: list[MakeWeight] = [make, make, dense, make, make]
    return [
        ExpertWeights(
            Projection(
                each(2 * INTERMEDIATE_SIZE, HIDDEN_SIZE), torch.randn(2 * INTERMEDIATE_SIZE)
            ),
            Projection(each(HIDDEN_SIZE, INTERMEDIATE_SIZE), torch.randn(HIDDEN_SIZE)),
        )
        for each in made
    ]


def make_layer(
    experts: list[ExpertWeights],
    gate: Gate,
    kernel_set: KernelSet = AVX512_BF16,
    num_threads: int = 2,
) -> ExpertLayer:
    return NativeProducts(NativeLibrary.load(kernel_set), num_threads).make(experts, gate)


def make_tokens(num_tokens: int = NUM_TOKENS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(4)
    inputs = torch.randn(num_tokens, HIDDEN_SIZE).to(torch.bfloat16)
    scores = torch.randn(num_tokens, NUM_EXPERTS)
    scores[:, 1] += 2.0  # one is liked more, and one never chosen
    scores[:, 3] = -9.0
    shares, expert_ids = scores.topk(NUM_CHOSEN)
    return inputs, expert_ids, shares.softmax(-1)


def reference(
    experts: list[ExpertWeights],
    gate: Gate,
    tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """In float64."""
    inputs, expert_ids, shares = tokens
    outputs = torch.zeros(inputs.shape, dtype=torch.float64)
    for token, (chosen, counts) in enumerate(
        zip(expert_ids.tolist(), shares.double(), strict=True)
    ):
        for expert, share in zip(chosen, counts, strict=True):
            gate_up, down = (_product(each) for each in experts[expert])
            gates, values = gate_up(inputs[token].double()).chunk(2)
            outputs[token] += share * down(_gated(gate, gates, values))
    return outputs


def _product(projection: Projection) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, bias = projection
    values = weight.dense(torch.float64) if isinstance(weight, ScaledWeight) else weight.double()
    assert bias is not None
    offset = bias.double()
    return lambda row: values @ row + offset


def _gated(gate: Gate, gates: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if isinstance(gate, SiluGate):
        return functional.silu(gates) * values
    gates, values = gates.clamp(max=gate.bound), values.clamp(-gate.bound, gate.bound)
    return gates * torch.sigmoid(gate.slope * gates) * (values + 1)


KINDS = (
    dense,
    int8_by_channel,
    int4_with_zeros,
    float4_in_blocks,
    int4_with_minima,
    int5_with_minima,
)


@needs_bfloat16
@pytest.mark.parametrize("gate", [SiluGate(), GPT_OSS_GATE], ids=["silu", "clamped"])
@pytest.mark.parametrize("make", KINDS)
def test_experts(make: MakeWeight, gate: Gate) -> None:
    experts, tokens = make_experts(make), make_tokens()
    outputs = make_layer(experts, gate)(*tokens)
    expected = reference(experts, gate, tokens)
    assert outputs.dtype == torch.bfloat16
    assert (outputs - expected).norm() <= MAX_ERROR * expected.norm()


@needs_bfloat16
@pytest.mark.parametrize("kernel_set", [AVX512_BF16, AVX512, AVX2, TILES])
@pytest.mark.parametrize("make", KINDS)
def test_a_token_does_not_depend_on_the_others(make: MakeWeight, kernel_set: KernelSet) -> None:
    experts, tokens = make_experts(make), make_tokens()
    together = make_layer(experts, GPT_OSS_GATE, kernel_set)(*tokens)
    alone = make_layer(experts, GPT_OSS_GATE, kernel_set, num_threads=1)
    for start, count in ((0, 1), (7, 2), (50, 13), (3, 40), (100, 130)):
        part = (each[start : start + count] for each in tokens)
        assert torch.equal(alone(*part), together[start : start + count])


@needs_bfloat16
def test_experts_are_added_in_the_order_of_their_numbers() -> None:
    experts = make_experts(float4_in_blocks)
    layer = make_layer(experts, SiluGate())
    inputs, expert_ids, shares = make_tokens()
    turned = layer(inputs, expert_ids.flip(1), shares.flip(1))
    assert torch.equal(layer(inputs, expert_ids, shares), turned)


@needs_bfloat16
def test_an_id_that_is_no_experts_adds_nothing() -> None:
    layer = make_layer(make_experts(float4_in_blocks), SiluGate())
    inputs, expert_ids, shares = make_tokens(3)
    expert_ids[1] = NUM_EXPERTS
    expert_ids[2, 0] = -1
    outputs = layer(inputs, expert_ids, shares)
    assert torch.equal(outputs[1], torch.zeros_like(outputs[1]))
    assert outputs[2].abs().max() > 0
