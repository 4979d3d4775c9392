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
from shared.checkpoint.model_files import weight_files

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
import json, resource, sys, time
from pathlib import Path
from bench.speculate import StepLog
from worker.engine.loading import cpu_loader
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine_link.engine_config import EngineConfig
cpu_s, load_native = [], cpu_loader.CpuLoader._load_native
def timed(*args):
    begin_s = time.process_time()
    loaded = load_native(*args)
    cpu_s.append(time.process_time() - begin_s)
    return loaded
cpu_loader.CpuLoader._load_native = timed
config = EngineConfig.from_json(sys.argv[1])
loop = EngineLoader(config, StepLog()).load()
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
sizes = {key: int(status[key].split()[0]) << 10 for key in ("VmHWM", "RssAnon", "RssFile")}
print(json.dumps(sizes | {"startup_s": loop._ready.startup_s, "cpu_s": cpu_s[0]}))
"""
PHASES = ("digest weights", "load weights")


def read_s(folder: Path) -> tuple[float, float]:
    """Of all weight files, one after the other: in all, and of a processor."""
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    for path in weight_files(folder):
        with path.open("rb", buffering=0) as file:
            buffer = bytearray(CHUNK_BYTES)
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begin_s, time.process_time() - begin_cpu_s


def load(settings: dict[str, object], packed: str, reading_s: float, reading_cpu_s: float) -> None:
    """In a process of its own."""
    output = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(settings | {"packed_weights": packed})],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    told = json.loads(output.splitlines()[-1])
    weights_s = sum(told["startup_s"].get(phase, 0.0) for phase in PHASES)
    peak, anonymous, mapped = (told[key] / (1 << 30) for key in ("VmHWM", "RssAnon", "RssFile"))
    print(
        f"packed {packed}: read {reading_s:.2f} s ({reading_cpu_s:.2f} of CPU), load "
        f"{weights_s:.2f} s ({told['cpu_s']:.2f} of CPU, {told['cpu_s'] / reading_cpu_s:.1f}), "
        f"peak {peak:.2f} GiB, stays {anonymous:.2f} GiB of its own and {mapped:.2f} mapped",
        flush=True,
    )


def main(
    model: Annotated[Path, cyclopts.Parameter(help="Made here unless it exists.")],
    *,
    quantization: str = "",
    packed_folder: str = "",
    repeats: int = 3,
) -> None:
    """Measure loading: from the checkpoint, and in turn from its packed form in `packed_folder`,
    which the first turn makes.
    """
    if not (model / "config.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        write_tokenizer(model, LLAMA_1B.vocab_size)
        write_weights(model, LLAMA_1B)
        write_config(model, LLAMA_1B)
    settings = {"model_path": str(model), "num_kv_tokens": 1024, "dtype": "bfloat16"}
    if quantization:
        settings["quantization"] = quantization
    if packed_folder:
        settings["packed_folder"] = packed_folder
    for _ in range(repeats):
        for packed in ("off", "always") if packed_folder else ("off",):
            load(settings, packed, *read_s(model))


if __name__ == "__main__":
    cyclopts.run(main)
