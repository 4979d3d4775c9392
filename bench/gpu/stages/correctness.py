"""Attention against float32, draws against the CPU's, tokens against plain torch's."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from bench.gpu.attention_case import AttentionCase
from bench.gpu.backends import OF_FLASHINFER, is_compiled
from bench.gpu.rig import Rig
from bench.gpu.token_check import TokenCheck
from worker.engine.cuda.sampling.draws import DeviceParams, HostDraws, TritonDraws
from worker.engine.layers.attention_backend import AttentionLayer

MAX_ERROR = 1e-2  # relative norm, of bfloat16
NUM_DRAWS = 32
VOCAB_SIZE = 1000


def run(rig: Rig) -> None:
    for heads, page_size in itertools.product(rig.sizes.heads, rig.sizes.page_sizes):
        if is_compiled(rig.backend, heads, page_size):
            _attention(rig, heads, page_size)
    if rig.backend in OF_FLASHINFER:
        return  # the rest is the same with them
    if rig.backend == "triton":
        _draws(rig)
    TokenCheck(rig).run()


@torch.inference_mode()
def _attention(rig: Rig, heads: tuple[int, int, int], page_size: int) -> None:
    """A step that decodes, one that prefills, and one that does both."""
    num_heads, num_kv_heads, head_dim = heads
    layer = AttentionLayer(num_heads, num_kv_heads, head_dim, head_dim**-0.5)
    lens = rig.sizes.seq_lens
    chunks = [min(seq_len, 33) for seq_len in lens if seq_len > 1]
    steps = {
        "decode": (lens, [1] * len(lens)),
        "prefill": (lens[1:], chunks),
        "mixed": (lens + lens[1:], [1] * len(lens) + chunks),
    }
    for what, (seq_lens, query_lens) in steps.items():
        case = AttentionCase.make(
            layer,
            seq_lens,
            query_lens,
            page_size=page_size,
            dtype=rig.dtype,
            device=rig.torch_device,
        )
        ours = case.run(case.attention(rig.backend, rig.device)).float()
        wanted = case.attended()
        error = float((ours - wanted).norm() / wanted.norm())
        rig.tell(
            {
                "what": f"attention, {what}",
                "backend": rig.backend,
                "heads": "x".join(map(str, heads)),
                "page": page_size,
                "error": error,
                "ok": error < MAX_ERROR,
            }
        )


@torch.inference_mode()
def _draws(rig: Rig) -> None:
    """Of all kinds of parameters, bit by bit."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(0, 3, (NUM_DRAWS, VOCAB_SIZE)).astype(np.float32))
    positions = torch.arange(NUM_DRAWS) * 7919

    def params(device: torch.device) -> DeviceParams:
        values = np.random.default_rng(1)
        seeds = values.integers(-(1 << 63), (1 << 63) - 1, NUM_DRAWS)
        ids = range(NUM_DRAWS)  # of four rows one keeps all, or is greedy
        return DeviceParams(
            seeds=torch.from_numpy(seeds).to(device),
            top_k=torch.tensor([40 if idx % 4 == 1 else 0 for idx in ids]).to(device),
            temperatures=torch.tensor([0.0 if idx % 8 == 0 else 0.8 for idx in ids]).to(device),
            top_p=torch.tensor([0.9 if idx % 4 == 2 else 1.0 for idx in ids]).to(device),
            min_p=torch.tensor([0.05 if idx % 4 == 3 else 0.0 for idx in ids]).to(device),
            keeps_part=True,
        )

    device = rig.torch_device
    ours = TritonDraws().draw(logits.to(device), params(device), positions.to(device)).cpu()
    theirs = HostDraws(VOCAB_SIZE).draw(logits, params(torch.device("cpu")), positions)
    num_same = int((ours == theirs).sum())
    rig.tell({"what": "draws", "same": num_same, "of": NUM_DRAWS, "ok": num_same == NUM_DRAWS})
