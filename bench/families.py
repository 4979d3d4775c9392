"""What a token costs on a CPU in each family of the fused decoder, beside Llama.

    python -m bench.families [olmo2 qwen3_moe deepseek_v3 ...] [--streams 8]

Families by their model_type (none: all), with random weights and as equal a shape as each allows;
a Llama by the same kernels (our C++, or torch) takes turns with each in one process. Prints CPU
time, user and system of all threads, for each million of the values that a token is multiplied
with (the head's, and of experts those that are chosen), in answers and in prompts; in brackets
beside Llama's. `misses`: more than 1.15 times Llama's in answers, or 1.3 with experts.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cyclopts
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from bench.mixture import PROMPT_LEN, TimedEngine
from shared.errors import ConfigError
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.registry import FUSED_ARCHITECTURES, read_model_config
from worker.engine.models.transformers_config import MODEL_ERRORS
from worker.engine_link.engine_config import CpuKernelsName

MAX_TIMES_LLAMA, MAX_TIMES_WITH_EXPERTS = 1.15, 1.3
NUM_LAYERS = 4
# What config.json calls it, in whichever family; lists by layer are left to transformers.
SHAPE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "sliding_window": 512,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "num_kv_heads": 4,  # Falcon
    "new_decoder_architecture": True,
    "ffn_dim": 4608,  # of an MLP without gates
    "word_embed_proj_dim": 1024,
    "query_pre_attn_scalar": 64,
    "global_head_dim": 64,  # Gemma 4
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "intermediate_size_mlp": 3072,  # Llama 4
    "q_lora_rank": 384,  # MLA
    "kv_lora_rank": 256,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "index_n_heads": 8,
    "index_head_dim": 64,
    "linear_num_key_heads": 8,  # delta nets
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_heads": 16,
    "linear_head_dim": 64,
    "num_heads": 32,  # Mamba 2
    "mamba_d_ssm": 2048,
    "mamba_n_heads": 32,
    "mamba_d_head": 64,
    "mamba_num_heads": 32,
    "mamba_head_dim": 64,
    "n_mamba_heads": 32,
    "mamba_expand": 2,
    "mamba_d_state": 64,
    "ssm_state_size": 64,
    "adapter_rank": 64,
    "num_mem_blocks": 1,
}
_EXPERTS = {"num_experts": 32, "num_experts_per_tok": 4, "shared": 1, "size": 768}
# By each name that families have for the same.
EXPERTS: dict[str, Any] = {
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        _EXPERTS["num_experts"],
    ),
    **dict.fromkeys(
        ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"),
        _EXPERTS["num_experts_per_tok"],
    ),
    **dict.fromkeys(
        ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), _EXPERTS["shared"]
    ),
    **dict.fromkeys(
        (
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ),
        _EXPERTS["size"],
    ),
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
}
# Whose experts are of `intermediate_size`.
SIZED_BY_MLP = {
    "aria_text",
    "flex_olmo",
    "gpt_oss",
    "granitemoe",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "llama4",
    "minimax",
    "minimax_m2",
    "mixtral",
    "olmoe",
}


def families() -> dict[str, str]:
    """Architecture -> the model_type of its own name, or the shortest of those that have it."""
    types: dict[str, list[str]] = {}
    for model_type, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        for name in (names,) if isinstance(names, str) else names:
            types.setdefault(name, []).append(model_type)

    def strangeness(architecture: str, model_type: str) -> tuple[bool, int]:
        own_name = architecture.removesuffix("ForCausalLM").lower()
        return model_type.replace("_", "") != own_name, len(model_type)

    return {
        each: min(types[each], key=partial(strangeness, each))
        for each in FUSED_ARCHITECTURES
        if each in types
    }


def family_config(model_type: str, architecture: str) -> dict[str, Any]:
    """config.json of the shape that all have."""
    config_class: Any = type(AutoConfig.for_model(model_type).get_text_config())
    told = {*config_class().to_dict(), *config_class.attribute_map}
    sizes = SHAPE | EXPERTS
    if model_type in SIZED_BY_MLP:
        sizes |= {"intermediate_size": _EXPERTS["size"]}
    if "kv_lora_rank" in told:
        sizes |= {"num_key_value_heads": sizes["num_attention_heads"]}
    values = {name: value for name, value in sizes.items() if name in told}
    return {
        **config_class(**values).to_dict(),
        "architectures": [architecture],
        "dtype": "bfloat16",
    }


def active_values(model: DecoderConfig) -> int:
    """Of the matrices that a token is multiplied with."""
    chosen = tuple(each and replace(each, num_experts=each.num_chosen) for each in model.experts)
    head = model.vocab_size * model.hidden_size
    return replace(model, experts=chosen).num_projection_values + head


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine, and how much it multiplies for a token."""

    engine: TimedEngine
    num_values: int

    @classmethod
    def start(
        cls, folder: Path, config: dict[str, Any], kernels: CpuKernelsName, num_threads: int
    ) -> Contender:
        """Raises ConfigError."""
        engine = TimedEngine(folder, config, kernels, num_threads)
        model = read_model_config(folder)
        if not isinstance(model, DecoderConfig):
            raise ConfigError("it goes through transformers")
        return cls(engine, active_values(model))

    def us_a_million(self, num_streams: int, num_tokens: int) -> tuple[float, float]:
        """Of the values of a token, in answers and in prompts."""
        of_prompts = self.engine.cpu_s(num_streams, 1)
        of_all = self.engine.cpu_s(num_streams, num_tokens + 1)
        factor = 1e12 / (self.num_values * num_streams)
        answers = (of_all - of_prompts) / num_tokens
        return factor * answers, factor * of_prompts / PROMPT_LEN


def main(
    *types: str, streams: int = 1, num_threads: int = 1, num_tokens: int = 16, repeats: int = 5
) -> None:
    """Measure families beside Llama."""
    known = families()
    if unknown := set(types) - set(known.values()):
        raise SystemExit(f"no such families: {', '.join(sorted(unknown))}")
    llama = family_config("llama", "LlamaForCausalLM")
    with TemporaryDirectory() as place:
        folder = Path(place)
        llamas = {
            kernels: Contender.start(folder / f"llama-{kernels}", llama, kernels, num_threads)
            for kernels in ("auto", "torch")
        }
        for architecture, model_type in known.items():
            if types and model_type not in types:
                continue
            try:
                config = family_config(model_type, architecture)
                one = Contender.start(folder / model_type, config, "auto", num_threads)
            except (ConfigError, *MODEL_ERRORS) as exc:
                print(f"{model_type:20} {exc}", flush=True)
                continue
            model = read_model_config(folder / model_type)
            assert isinstance(model, DecoderConfig), "it has been read so"
            base = llamas["auto" if model.beyond_native is None else "torch"]
            turns = [
                (one.us_a_million(streams, num_tokens), base.us_a_million(streams, num_tokens))
                for _ in range(repeats + 1)
            ][1:]  # the first one warms up
            print(row(model_type, model, turns), flush=True)


def row(
    model_type: str,
    model: DecoderConfig,
    turns: list[tuple[tuple[float, float], tuple[float, float]]],
) -> str:
    """A family's line."""
    told, ratios = [], []
    for part in (0, 1):
        ours, base = (statistics.median(turn[who][part] for turn in turns) for who in (0, 1))
        ratios.append(ours / base)
        told.append(f"{ours:6.1f} ({ratios[-1]:.2f})")
    bound = MAX_TIMES_WITH_EXPERTS if any(model.experts) else MAX_TIMES_LLAMA
    kernels = "C++" if model.beyond_native is None else "torch"
    mark = " misses" if ratios[0] > bound else ""
    return f"{model_type:20} {kernels:5} answers {told[0]}, prompts {told[1]}{mark}"


if __name__ == "__main__":
    cyclopts.run(main)
