"""How a GGUF file stretches positions, in the words of config.json's rope_parameters."""

from __future__ import annotations

import math
from typing import Any

from shared.gguf.facts import ModelFacts

Rope = dict[str, Any]

# A file holds what Llama 3 makes of these numbers, and of them the first factor alone.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_TOLERANCE = 1e-4  # of factors that were computed in float32


def scaled_rope(facts: ModelFacts, default_theta: float = 10000.0) -> Rope:
    """Default, linear or yarn. Raises ConfigError for others."""
    theta = facts.number("rope.freq_base", default_theta)
    match facts.text("rope.scaling.type", "none"):
        case "none":
            return {"rope_type": "default", "rope_theta": theta}
        case "linear":
            factor = facts.number("rope.scaling.factor")
            return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        case "yarn":
            return {"rope_type": "yarn", "rope_theta": theta} | _yarn(facts)
        case other:
            raise facts.error(f"scales positions by {other!r}: not supported")


def llama_rope(facts: ModelFacts) -> Rope:
    """With Llama 3's way, of which a file holds a factor for each frequency."""
    rope = scaled_rope(facts)
    factors = facts.floats("rope_freqs.weight")
    if factors is None:
        return rope
    theta = float(rope["rope_theta"])
    wanted = _llama3_factors(theta, len(factors), max(factors))
    is_llama3 = len(factors) == facts.head_dim // 2 and all(
        math.isclose(ours, theirs, rel_tol=_TOLERANCE)
        for ours, theirs in zip(wanted, factors, strict=True)
    )
    if rope["rope_type"] != "default" or not is_llama3:
        raise facts.error("has rope_freqs that are not Llama 3's: not supported")
    factor = round(max(factors), 3)
    return {"rope_type": "llama3", "rope_theta": theta, "factor": factor} | _LLAMA3


def phi3_rope(facts: ModelFacts) -> Rope:
    """Part of each head is rotated; long texts have factors of their own."""
    if (kind := facts.text("rope.scaling.type", "none")) not in ("none", "longrope"):
        raise facts.error(f"scales positions by {kind!r}: not supported")
    rope: Rope = {
        "rope_type": "default",
        "rope_theta": facts.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": facts.num_rotated / facts.head_dim,
    }
    long, short = (facts.floats(f"rope_factors_{each}.weight") for each in ("long", "short"))
    if long is None and short is None:
        return rope
    if long is None or short is None:
        raise facts.error("has rope_factors for long or for short texts alone: not supported")
    return rope | {"rope_type": "longrope", "long_factor": long, "short_factor": short}


def _yarn(facts: ModelFacts) -> Rope:
    if facts.number("rope.scaling.yarn_attn_factor", 1.0) != 1.0:
        raise facts.error("has a yarn_attn_factor of its own: not supported")
    found: Rope = {
        "factor": facts.number("rope.scaling.factor"),
        "original_max_position_embeddings": facts.integer("rope.scaling.original_context_length"),
    }
    for name in ("beta_fast", "beta_slow"):
        value = facts.optional_number(f"rope.scaling.yarn_{name}")
        if value is not None:
            found[name] = value
    return found


def _llama3_factors(theta: float, num_frequencies: int, factor: float) -> list[float]:
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    trained_len = _LLAMA3["original_max_position_embeddings"]
    found = []
    for idx in range(num_frequencies):
        num_turns = trained_len / (2 * math.pi * theta ** (idx / num_frequencies))
        share = min(1.0, max(0.0, (num_turns - low) / (high - low)))
        found.append(1 / ((1 - share) / factor + share))
    return found
