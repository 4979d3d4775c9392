"""Makes a checkpoint that copies: after a token that occurred before, what followed it then.

The sizes, and so the work, are those of the engine's benchmark; two heads are built by hand, the
way that trained models do it (an induction head). Everything else adds nothing to the hidden state.

Dimensions of the hidden state:
  [0, 36)    code of the token itself, a random unit vector; later the prediction on top
  [36, 72)   code of the token before, written by layer 0
  72         1 for every token
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import cyclopts

from bench.checkpoint import ensure_checkpoint
from bench.model_shape import LLAMA_135M

ROPE_THETA = 1e9  # so slow at the end that content can be compared over a long way
CODE_LEN = 36
ONE = 2 * CODE_LEN
FIRST_SLOW_PAIR = 14  # of the 32 pairs of dimensions that rope turns
SHARPNESS = 14.0  # of the step back by one
MATCH = 20.0  # of the comparison of tokens
PREDICTION = 4.0  # against 1 for the token itself


def ensure_copying_checkpoint(folder: Path) -> None:
    """Make it unless it is there."""
    if (folder / "copies").exists():
        return
    ensure_checkpoint(folder)
    _rewrite_weights(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": ROPE_THETA}, indent=2))
    (folder / "copies").touch()


def _rewrite_weights(path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    hidden_size, half = LLAMA_135M.hidden_size, LLAMA_135M.head_dim // 2
    codes = torch.randn(LLAMA_135M.vocab_size, CODE_LEN, generator=torch.Generator().manual_seed(1))
    embeddings = torch.zeros(LLAMA_135M.vocab_size, hidden_size)
    embeddings[:, :CODE_LEN] = codes / codes.norm(dim=1, keepdim=True)
    embeddings[:, ONE] = 1.0
    tensors["model.embed_tokens.weight"] = embeddings.bfloat16()
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()

    def head(layer: int) -> tuple[torch.Tensor, ...]:
        """The first head's q, k, v and o."""
        prefix = f"model.layers.{layer}.self_attn."
        return tuple(tensors[f"{prefix}{name}_proj.weight"] for name in "qkvo")

    code, before = range(CODE_LEN), range(CODE_LEN, 2 * CODE_LEN)
    # Layer 0 looks one token back: rope turns its constant query a step less than the keys.
    norm = math.sqrt(hidden_size / 2)  # of the root mean square, with two unit vectors
    q, k, v, o = head(0)
    for weight in (q, k, v):
        weight[: 2 * half].zero_()
    for pair in range(half):
        angle = ROPE_THETA ** (-pair / half)
        q[pair, ONE] = SHARPNESS * math.cos(angle) / norm
        q[pair + half, ONE] = -SHARPNESS * math.sin(angle) / norm
        k[pair, ONE] = SHARPNESS / norm
    for idx in range(CODE_LEN):
        v[idx, code[idx]] = 1 / norm
        o[before[idx], idx] = 1.0
    # Layer 1 looks for the place behind this token, and takes the token there.
    norm = math.sqrt(hidden_size / 3)
    q, k, v, o = head(1)
    for weight in (q, k, v):
        weight[: 2 * half].zero_()
    for idx in range(CODE_LEN):
        pair = FIRST_SLOW_PAIR + idx % (CODE_LEN // 2)
        dim = pair + half * (idx // (CODE_LEN // 2))
        q[dim, code[idx]] = MATCH / norm
        k[dim, before[idx]] = MATCH / norm
        v[idx, code[idx]] = 1 / norm
        o[code[idx], idx] = PREDICTION
    save_file(tensors, path, metadata={"format": "pt"})


if __name__ == "__main__":
    cyclopts.run(ensure_copying_checkpoint)
