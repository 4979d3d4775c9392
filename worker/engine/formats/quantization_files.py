"""What the files of a checkpoint tell of its quantisation, read by the rules of its tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from shared.checkpoint.weights.quantization_sections import quantization_sections
from shared.checkpoint.weights.section import Section
from shared.errors import ConfigError
from worker.engine.formats.methods.awq import read_awq
from worker.engine.formats.methods.bits_and_bytes import read_bits_and_bytes
from worker.engine.formats.methods.compressed_tensors import read_compressed_tensors
from worker.engine.formats.methods.fp8 import read_fbgemm, read_fp8
from worker.engine.formats.methods.gpt_oss import read_mxfp4
from worker.engine.formats.methods.gptq import read_gptq
from worker.engine.formats.methods.modelopt import read_modelopt
from worker.engine.formats.quantization import Quantization

METHODS: Mapping[str, Callable[[Section], Quantization | None]] = {
    "awq": read_awq,
    "bitsandbytes": read_bits_and_bytes,
    "compressed-tensors": read_compressed_tensors,
    "fbgemm_fp8": read_fbgemm,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "modelopt": read_modelopt,
    "mxfp4": read_mxfp4,
}


def read_quantization(model_path: Path) -> Quantization | None:
    """None for a checkpoint in 16 or 32 bits. Raises ConfigError for what we do not know."""
    told = [METHODS[method](section) for method, section in quantization_sections(model_path)]
    _check_agreed(model_path, told)
    return told[0] if told else None


def _check_agreed(model_path: Path, told: list[Quantization | None]) -> None:
    names = dict.fromkeys("none" if each is None else each.name for each in told)
    if len(names) > 1:
        raise ConfigError(
            f"the files of {model_path} say different things of its quantisation: "
            f"{'; '.join(names)}"
        )
