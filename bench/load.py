"""How long a checkpoint takes to load on a CPU, and how much memory meanwhile.

    python -m bench.load .data/bench/llama-1b

Beside it: how long it takes to read the same files, and what stays. The checkpoint is made first
unless it is there: a Llama of 1.1 billion parameters with random bfloat16 weights, 2.2 GB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import cyclopts

from bench.checkpoint import write_config, write_tokenizer, write_weights
from bench.model_shape import ModelShape

LLAMA_1B = ModelShape(
    vocab_size=49152,
    hidden_size=2048,
    intermediate_size=5632,
    num_layers=22,
    num_heads=32,
    num_kv_heads=4,
    head_dim=64,
)
CHUNK_BYTES = 1 << 24
CHILD = """
import json, sys
from pathlib import Path
from bench.speculate import StepLog
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine_link.engine_config import EngineConfig
config = EngineConfig.from_json(sys.argv[1])
loop = EngineLoader(config, StepLog()).load()
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
sizes = {key: int(status[key].split()[0]) << 10 for key in ("VmHWM", "RssAnon")}
print(json.dumps(sizes | {"startup_s": loop._ready.startup_s}))
"""


def read_s(folder: Path) -> float:
    """Of all weight files, one after the other."""
    begin_s = time.perf_counter()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            buffer = bytearray(CHUNK_BYTES)
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begin_s


def main(
    model: Annotated[Path, cyclopts.Parameter(help="Made here unless it exists.")],
    *,
    quantization: str = "",
    repeats: int = 3,
) -> None:
    """Measure loading."""
    if not (model / "config.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        write_tokenizer(model, LLAMA_1B.vocab_size)
        write_weights(model, LLAMA_1B)
        write_config(model, LLAMA_1B)
    settings = {"model_path": str(model), "num_kv_tokens": 1024, "dtype": "bfloat16"}
    if quantization:
        settings["quantization"] = quantization
    for _ in range(repeats):
        reading_s = read_s(model)
        output = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps(settings)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        told = json.loads(output.splitlines()[-1])
        weights_s = told["startup_s"]["load weights"]
        peak, stays = told["VmHWM"] / (1 << 30), told["RssAnon"] / (1 << 30)
        print(
            f"read {reading_s:.2f} s, load {weights_s:.2f} s ({weights_s / reading_s:.2f}), "
            f"peak {peak:.2f} GiB, stays {stays:.2f} GiB ({peak / stays:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    cyclopts.run(main)
