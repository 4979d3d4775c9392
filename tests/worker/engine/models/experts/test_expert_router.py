from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from worker.engine.layers.checked_linears import choose_linears
from worker.engine.models.experts.expert_router import (
    ExpertRouter,
    RouterWeights,
    choose_experts,
)
from worker.engine.models.experts.experts_config import ExpertsConfig

CONFIG = ExpertsConfig(
    num_experts=6, num_chosen=2, hidden_size=6, intermediate_size=4, scoring="sigmoid"
)


def make_router(config: ExpertsConfig, correction: list[float] | None = None) -> ExpertRouter:
    """Whose logits are what it is given."""
    bias = None if correction is None else torch.tensor(correction)
    weights = RouterWeights(torch.eye(6), None, bias)
    return ExpertRouter(config, weights, choose_linears(torch.float32), choose_experts)


def test_of_equals_the_first_are_chosen() -> None:
    expert_ids, shares = make_router(CONFIG)(torch.zeros(3, 6))
    assert expert_ids.tolist() == [[0, 1]] * 3
    assert shares.tolist() == [[0.5, 0.5]] * 3


def test_a_correction_chooses_and_does_not_count() -> None:
    router = make_router(CONFIG, [0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    expert_ids, shares = router(torch.tensor([[0.0, 2.0, 1.0, -3.0, 0.0, 0.0]]))
    assert expert_ids.tolist() == [[1, 3]]
    assert shares[0].tolist() == pytest.approx([1 / (1 + 2.718281828**-2), 1 / (1 + 20.08553692)])


def test_the_best_group_may_lack_the_best_expert() -> None:
    config = replace(CONFIG, num_groups=2, num_chosen_groups=1, num_group_scores=2)
    logits = torch.tensor([[3.0, -9.0, -9.0, 1.0, 1.0, 2.0]])
    assert make_router(config)(logits)[0].tolist() == [[3, 5]]
    by_best = replace(config, num_group_scores=1)
    assert make_router(by_best)(logits)[0].tolist() == [[0, 1]]


def test_shares_are_normed_and_scaled() -> None:
    config = replace(CONFIG, is_normed=True, scale=2.5, scoring="softmax", num_chosen=3)
    _, shares = make_router(config)(torch.randn(5, 6, generator=torch.Generator().manual_seed(1)))
    assert torch.allclose(shares.sum(-1), torch.tensor(2.5))


def test_a_token_is_routed_alike_in_any_company() -> None:
    config = replace(
        CONFIG, num_groups=3, num_chosen_groups=2, num_group_scores=2, is_normed=True, num_chosen=3
    )
    router = make_router(config, [0.1, -0.2, 0.3, 0.0, 0.2, -0.1])
    x = torch.randn(70, 6, generator=torch.Generator().manual_seed(2))
    expert_ids, shares = router(x)
    for idx in range(70):
        own_ids, own_shares = router(x[idx : idx + 1])
        assert torch.equal(own_ids[0], expert_ids[idx])
        assert torch.equal(own_shares[0], shares[idx])
