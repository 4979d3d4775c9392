"""What a mixture of experts costs a token on a CPU, beside a dense model of its active size.

    python -m bench.mixture [--kernels torch] [--json-config '{"num_experts": 64}']

Qwen 3 with random weights, with experts and with an MLP of as many values as a token's experts
have, each by the kernels that this machine chooses; `--kernels torch` adds the mixture in torch.
Engines take turns in one process. Prints CPU time, user and system of all threads: of a token of
the answers, once prompts are computed, and of a token of the prompts (median of the rounds). Tokens
are drawn, so that those of a step differ. Beside it stands what a step reads of weights: what all
tokens share once, and once each expert that one of them has chosen, beside a dense model's weights.
How many experts those are is reckoned as if each token chose by chance.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import cyclopts

from bench.speculate import StepLog
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine_link.engine_config import CpuKernelsName, EngineConfig
from worker.engine_link.engine_messages import AddRequest, FlushCache, RunOptions

MIXTURE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 16384,
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 384,
    "intermediate_size": 3072,
    "norm_topk_prob": True,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
}
PROMPT_LEN = 64


class TimedEngine:
    """Our engine in this process."""

    def __init__(
        self, folder: Path, config: dict[str, Any], kernels: CpuKernelsName, num_threads: int
    ) -> None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        engine_config = EngineConfig(
            model_path=str(folder),
            load_format="dummy",
            dtype="bfloat16",
            cpu_kernels=kernels,
            num_kv_tokens=8192,
            num_threads=num_threads,
            max_running=64,
            max_step_s=10.0,
            target_itl_s=10.0,
        )
        self._log = StepLog()
        self._loop = EngineLoader(engine_config, self._log).load()
        self._vocab_size = int(config["vocab_size"])
        self._num_runs = 0

    def cpu_s(self, num_streams: int, num_tokens: int) -> float:
        """Of so many requests from their prompts on."""
        self._log.commands = [FlushCache()]
        for _ in range(num_streams):
            self._num_runs += 1
            sampling = SamplingParams(
                max_tokens=num_tokens, seed=self._num_runs, temperature=1.0, ignore_eos=True
            )
            first = self._num_runs * 7919
            prompt = [(first + 31 * idx * idx) % self._vocab_size for idx in range(PROMPT_LEN)]
            options = RunOptions(sampling=sampling)
            add = AddRequest(
                run_id=self._num_runs, prompt_ids=pack_token_ids(prompt), options=options
            )
            self._log.commands.append(add)
        begin_s = time.process_time()
        self._loop.run(until_idle=True)
        return time.process_time() - begin_s


def dense_config(mixture: dict[str, Any]) -> dict[str, Any]:
    """Of the size that is active for a token."""
    return mixture | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "intermediate_size": mixture["num_experts_per_tok"] * mixture["moe_intermediate_size"],
    }


def bytes_beside_dense(config: dict[str, Any], num_tokens: int) -> float:
    """What a step of a mixture reads of weights, beside the step of a dense one."""
    hidden_size, num_experts = config["hidden_size"], config["num_experts"]
    num_heads = 2 * (config["num_attention_heads"] + config["num_key_value_heads"])
    expert = 3 * hidden_size * config["moe_intermediate_size"]
    shared = num_heads * config["head_dim"] * hidden_size
    shared += config["vocab_size"] * hidden_size / config["num_hidden_layers"]
    router = 2 * num_experts * hidden_size  # in float32: two values each
    share = config["num_experts_per_tok"] / num_experts
    num_chosen = num_experts * (1.0 - (1.0 - share) ** num_tokens)
    dense = shared + config["num_experts_per_tok"] * expert
    return float((shared + router + num_chosen * expert) / dense)


def main(
    *,
    kernels: Annotated[
        tuple[CpuKernelsName, ...], cyclopts.Parameter(help="Of further engines for the mixture.")
    ] = (),
    json_config: Annotated[str, cyclopts.Parameter(help="Changes to the mixture's.")] = "{}",
    streams: tuple[int, ...] = (1, 8, 32),
    num_threads: int = 2,
    num_tokens: int = 16,
    repeats: int = 5,
) -> None:
    """Measure a mixture of experts on a CPU."""
    mixture = MIXTURE | json.loads(json_config)
    with TemporaryDirectory() as place:
        folder = Path(place)

        def start(name: str, config: dict[str, Any], kernels: CpuKernelsName) -> TimedEngine:
            return TimedEngine(folder / name, config, kernels, num_threads)

        engines = {
            "dense": start("dense", dense_config(mixture), "auto"),
            "mixture": start("mixture", mixture, "auto"),
            **{name: start(name, mixture, name) for name in kernels},
        }
        for num_streams in streams:
            answers: dict[str, list[float]] = {name: [] for name in engines}
            prompts: dict[str, list[float]] = {name: [] for name in engines}
            for round_idx in range(repeats + 1):  # the first one warms up
                for name, engine in engines.items():
                    of_prompts = engine.cpu_s(num_streams, 1)
                    of_all = engine.cpu_s(num_streams, num_tokens + 1)
                    if round_idx:
                        of_answers = (of_all - of_prompts) / (num_streams * num_tokens)
                        answers[name].append(of_answers)
                        prompts[name].append(of_prompts / (num_streams * PROMPT_LEN))
            least = bytes_beside_dense(mixture, num_streams)
            told = f"{report(answers)}; bytes of weights {least:.2f}"
            print(f"{num_streams:3} streams, CPU us a token: {told}")
            print(f"            of prompts: {report(prompts)}", flush=True)


def report(turns: dict[str, list[float]]) -> str:
    """By engine, beside the first."""
    medians = {name: statistics.median(values) for name, values in turns.items()}
    base = medians["dense"]
    return ", ".join(f"{name} {1e6 * s:.0f} ({s / base:.2f})" for name, s in medians.items())


if __name__ == "__main__":
    cyclopts.run(main)
