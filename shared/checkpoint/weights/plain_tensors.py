"""Tensors whose numbers mean themselves: what a checkpoint may hold beside quantised weights."""

from __future__ import annotations

from collections.abc import Mapping

from shared.checkpoint.weights.safetensors_file import TensorHeader
from shared.errors import ConfigError

# As safetensors names them: what a tensor of numbers that means itself is stored in.
PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
NO_QUANTIZATION = "its files name no quantisation"
# Masks and counters that old checkpoints carry: nothing is computed of them.
_COUNTS = frozenset({"BOOL", "I64"})
_MASKS = (".bias", ".masked_bias", "position_ids")


def check_plain(headers: Mapping[str, TensorHeader], place: str, told: str) -> None:
    """Raises ConfigError for a tensor of codes, which names it, and says what is `told` of it."""
    for name, header in headers.items():
        dtype = header.dtype
        if dtype in PLAIN_DTYPES or dtype in _COUNTS or name.endswith(_MASKS):
            continue
        if is_harmless(name):
            continue
        raise ConfigError(f"the checkpoint in {place} stores {name!r} as {dtype}, and {told}")


def is_harmless(name: str) -> bool:
    """Whether a tensor that nobody reads says nothing of what a model computes."""
    # Of layers that guess the tokens after the next one.
    return name.startswith("mtp.") or name.endswith(
        (
            # Made of the configuration.
            "rotary_emb.inv_freq",
            ".position_ids",
            # Of a head, where the embeddings are taken for it, or another one is.
            "lm_head.weight",
            # Of an encoder's first token, of which no embedding is made.
            *("pooler.dense.weight", "pooler.dense.bias"),
            # Of keys and values in eight bits: theirs is the model's format here.
            *(".k_scale", ".v_scale", ".kv_scale", ".q_scale", ".prob_output_scale"),
            *(".k_zero_point", ".v_zero_point"),
            # Of activations in fewer bits: theirs is the model's format here.
            *("input_scale", "input_zero_point", "input_global_scale", "input_scale_ub"),
            *("output_scale", "output_zero_point", "activation_scale"),
        )
    )
