"""All experts' products in one kernel give what each expert's linears give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from worker.engine.cuda.gpu_loading import ReaderToDevice
from worker.engine.cuda.layers.gpu_layer_ops import PlainGpuLayerOps
from worker.engine.layers.linear import PlainLinears
from worker.engine.models.experts.expert_mlp import LinearExpertMaker
from worker.engine.models.experts.expert_router import choose_experts
from worker.engine.models.experts.experts_config import ExpertsConfig
from worker.engine.models.layer_config import ClampedGate, MlpConfig
from worker.engine.models.layer_ops import PlainLayerOps
from worker.engine.models.layer_ropes import LayerRopes

HIDDEN_SIZE, SIZE = 40, 24  # neither is a multiple of what is multiplied at a time
MLPS = {
    "silu": MlpConfig(),
    "gpt-oss": MlpConfig(clamp=ClampedGate(1.702, 7.0)),
    "no gate": MlpConfig(up=("up_proj",), is_gated=False, activation="relu2"),
}


class RandomReader:
    """Any tensor, the same for a name."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def read(self, name: str, *shape: int) -> torch.Tensor:
        return self.read_as(self._dtype, name, *shape)

    def read_as(self, dtype: torch.dtype, name: str, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        return (0.3 * torch.randn(*shape, generator=generator)).to(dtype)

    def has(self, name: str) -> bool:
        return False


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "name"),
    [
        *((1, 5, name) for name in MLPS),
        (70, 3, "gpt-oss"),
        (70, 3, "no gate"),
        pytest.param(70, 3, "silu", marks=pytest.mark.nightly),
    ],
)
def test_experts_are_those_of_plain_torch(
    num_tokens: int, num_experts: int, name: str, device: torch.device
) -> None:
    """Few rows and many; some experts have none."""
    from worker.engine.cuda.layers.triton_experts import TritonExpertMaker
    from worker.engine.cuda.layers.triton_layer_ops import TritonLayerOps

    config = ExpertsConfig(
        num_experts=num_experts,
        num_chosen=2,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=SIZE,
        mlp=MLPS[name],
        scoring="softmax",
        has_bias=name == "gpt-oss",
    )
    generator = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, HIDDEN_SIZE, generator=generator)
    scores = torch.rand(num_tokens, num_experts, generator=generator)
    scores[:, 1] = -1.0  # nobody's
    shares, expert_ids = scores.topk(2)
    expert_ids = expert_ids.sort().values
    plain = PlainLayerOps(LayerRopes(()), (), PlainLinears())
    maker = LinearExpertMaker(plain.projection)
    dense = maker.make(config, RandomReader(torch.float32), "", 0)
    ops = TritonLayerOps(LayerRopes(()), ())
    reader = ReaderToDevice(RandomReader(torch.float32), device)
    fixed, free = (
        TritonExpertMaker(ops, is_fixed=is_fixed).make(config, reader, "", 0)
        for is_fixed in (True, False)
    )
    given = x.to(device), expert_ids.to(device), shares.to(device)
    wanted = dense(x, expert_ids, shares)
    for experts in (fixed, free):
        torch.testing.assert_close(experts(*given).cpu(), wanted, rtol=1e-5, atol=1e-5)
    alone = fixed(*(each[:1] for each in given))
    assert torch.equal(alone, fixed(*given)[:1]), "whoever is beside it"


@pytest.mark.parametrize(
    "changes",
    [
        {"scoring": "softmax"},
        {"scoring": "softmax", "is_normed": True, "num_chosen": 5},
        {"scoring": "sigmoid", "has_correction": True, "is_normed": True, "scale": 2.5},
        {"scoring": "sigmoid", "num_groups": 5, "num_chosen_groups": 2},
    ],
)
def test_the_chosen_are_those_of_plain_torch(changes: dict[str, Any], device: torch.device) -> None:
    """Of equals the first; what is no number chooses as many as any other."""
    from worker.engine.cuda.layers.triton_experts import TritonExpertMaker

    sizes = {"num_experts": 5, "num_chosen": 2, "hidden_size": 4, "intermediate_size": 4}
    config = ExpertsConfig(**(sizes | changes))
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    logits[1], logits[2, 3:] = 0.0, -torch.inf
    correction = torch.tensor([0.0, 0.5, -0.5, 0.1, 0.1]) if config.has_correction else None
    wanted = choose_experts(config, logits, correction)
    choose = TritonExpertMaker(PlainGpuLayerOps(LayerRopes(()), ()), is_fixed=False).choose
    chosen = choose(config, logits.to(device), on(correction, device))
    assert torch.equal(chosen.expert_ids.cpu(), wanted.expert_ids)
    torch.testing.assert_close(chosen.shares.cpu(), wanted.shares)
    with np.errstate(invalid="ignore"):
        nans = torch.full((1, 5), torch.nan, device=device)
        unknown = choose(config, nans, on(correction, device))
    assert len({*unknown.expert_ids[0].tolist()} & {*range(5)}) == config.num_chosen


def on(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)
