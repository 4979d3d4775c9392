"""What each format leaves of the demo model, on conversations that it was not trained on."""

from __future__ import annotations

import functools
from typing import Any, get_args

import pytest
import torch
from torch.nn import functional

from shared.checkpoint.stored_format import HEAD_FORMAT, MadeFormat
from tests.worker.checkpoints import DEMO_MODEL
from tests.worker.engine.demo_conversations import conversation_ids, needs_demo_model
from tests.worker.engine.formats.quantized_copies import PROJECTION
from tests.worker.engine.formats.stored_kinds import KINDS, Store, Stored, store_bytes, store_packed
from worker.engine.formats.made_codes import make_codes

NUM_CONVERSATIONS = 6
FP8 = torch.float8_e4m3fn


HEAD = "model.embed_tokens.weight"  # the embeddings are taken for it


def made(kind: MadeFormat, _: str, weight: torch.Tensor) -> Stored:
    return Stored({}, make_codes(kind, weight).dense(torch.float32))


# The store, the largest mean KL in nats, and the least share of tokens with the same likeliest one.
QUALITY: dict[str, tuple[Store, float, float]] = {
    "int8 by channel": (KINDS["int8 by channel"].store, 0.002, 0.99),
    "fp8 by channel": (
        functools.partial(store_bytes, dtype=FP8, block=(1, 0), scale="weight_scale"),
        0.01,
        0.98,
    ),
    "fp8 in blocks of 128 x 128": (
        functools.partial(store_bytes, dtype=FP8, block=(128, 128), scale="weight_scale_inv"),
        0.01,
        0.98,
    ),
    "int4 in groups of 32": (
        functools.partial(store_packed, num_bits=4, has_zeros=False, group=32),
        0.05,
        0.95,
    ),
    "int4 in groups of 128 with zeros": (
        functools.partial(store_packed, num_bits=4, has_zeros=True, group=128),
        0.05,
        0.95,
    ),
    "nvfp4": (KINDS["nvfp4 of compressed-tensors"].store, 0.05, 0.95),
    "mxfp4": (KINDS["mxfp4"].store, 0.1, 0.93),
    "nf4": (KINDS["nf4"].store, 0.05, 0.95),
    "int8, made when loaded": (functools.partial(made, "int8"), 0.002, 0.99),
    "fp8, made when loaded": (functools.partial(made, "fp8"), 0.01, 0.98),
    "int4, made when loaded": (functools.partial(made, "int4"), 0.05, 0.95),
}
MADE: dict[str, MadeFormat] = {f"{kind}, made when loaded": kind for kind in get_args(MadeFormat)}

pytestmark = needs_demo_model


@pytest.fixture(scope="module")
def texts() -> list[torch.Tensor]:
    """Each [1, num_tokens]."""
    return [ids.unsqueeze(0) for ids in conversation_ids(NUM_CONVERSATIONS)]


@pytest.fixture(scope="module")
def original() -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)


@pytest.fixture(scope="module")
def reference(original: Any, texts: list[torch.Tensor]) -> torch.Tensor:
    return log_probs(original, texts)


@pytest.mark.parametrize("name", QUALITY)
def test_what_a_format_leaves(
    name: str, original: Any, reference: torch.Tensor, texts: list[torch.Tensor]
) -> None:
    store, max_kl, min_agreement = QUALITY[name]
    weights = original.state_dict()
    kept = {key: value.clone() for key, value in weights.items() if PROJECTION.fullmatch(key)}
    if name in MADE:
        kept[HEAD] = weights[HEAD].clone()
    try:
        for key, value in kept.items():
            own = functools.partial(made, HEAD_FORMAT[MADE[name]]) if key == HEAD else store
            weights[key].copy_(own("m", value).values)
        ours = log_probs(original, texts)
    finally:
        for key, value in kept.items():
            weights[key].copy_(value)
    kl = (reference.exp() * (reference - ours)).sum(-1).mean()
    agreement = (ours.argmax(-1) == reference.argmax(-1)).float().mean()
    print(f"{name}: KL {kl:.5f}, agreement {agreement:.4f}")
    assert float(kl) < max_kl
    assert float(agreement) > min_agreement


def log_probs(model: Any, texts: list[torch.Tensor]) -> torch.Tensor:
    """[num_tokens, vocab_size], of all texts in a row."""
    with torch.inference_mode():
        return torch.cat([functional.log_softmax(model(text).logits[0], -1) for text in texts])
