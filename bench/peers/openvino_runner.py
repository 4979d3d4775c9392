"""Runs OpenVINO GenAI's continuous batching, stepped by us so that each token's time is seen.

The checkpoint is converted by optimum-intel, with `--set weights=int8` or int4 to fewer bits, the
head to eight. Keys and values are stored in the engine's default precision, which is 8 bits;
`--set kv=bf16` changes it.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from bench.peers.runner import RequestTrace, RunnerSettings, Stopwatch, serve

PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}
WEIGHT_FORMATS = {"bfloat16": "fp16", "float32": "fp32"}
INT4_FLAGS = ["--group-size", "128", "--ratio", "1.0"]  # in all layers


class OpenvinoRunner:
    """The pipeline, on the CPU."""

    def __init__(self, settings: RunnerSettings) -> None:
        self.version = openvino_genai.__version__
        self._request_ids = itertools.count()
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = settings.kv_gib
        scheduler.max_num_seqs = settings.max_running
        scheduler.enable_prefix_caching = True
        properties: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": settings.num_threads,
            "INFERENCE_PRECISION_HINT": PRECISIONS[settings.dtype],
        }
        if "kv" in settings.extra:
            properties["KV_CACHE_PRECISION"] = settings.extra["kv"]
        self._pipeline: Any = openvino_genai.ContinuousBatchingPipeline(
            str(_folder(settings)), scheduler, "CPU", properties
        )

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        greedy = openvino_genai.GenerationConfig()
        greedy.max_new_tokens = output_len
        greedy.do_sample = False
        greedy.ignore_eos = True
        stopwatch = Stopwatch()
        handles = [
            self._pipeline.add_request(
                next(self._request_ids), openvino.Tensor(np.array([prompt], dtype=np.int64)), greedy
            )
            for prompt in prompts
        ]
        traces = [RequestTrace() for _ in prompts]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now_s = stopwatch()
            for handle, trace in zip(handles, traces, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        trace.add(list(output.generated_ids), now_s)
        return traces

    def close(self) -> None:
        """Nothing: it is all in this process."""


def _folder(settings: RunnerSettings) -> Path:
    weights = settings.extra.get("weights")
    return settings.converted("-openvino" if weights is None else f"-openvino-{weights}")


def convert(settings: RunnerSettings) -> None:
    folder = _folder(settings)
    if (folder / "openvino_tokenizer.xml").exists():
        return
    command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino"]
    command += ["--model", settings.model, "--task", "text-generation-with-past"]
    weights = settings.extra.get("weights", WEIGHT_FORMATS[settings.dtype])
    command += ["--weight-format", weights, *(INT4_FLAGS if weights == "int4" else []), str(folder)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    serve(OpenvinoRunner, convert)
