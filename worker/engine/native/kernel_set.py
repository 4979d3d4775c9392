"""The sets of instructions that the C++ decoder is compiled for, a library each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelSet:
    """All workers of one set make the same bits of the same request. The set is chosen once a
    worker, by what the processor has, never by shapes or timings.
    """

    name: str  # a KernelSetName
    flags: tuple[str, ...]  # of the compiler: what every processor of the set has
    needs: tuple[tuple[str, str], ...]  # capabilities: as people and as torch name them


_AVX512_FLAGS = ("-march=x86-64-v4", "-mavx512vbmi", "-mavx512vnni")
_AVX512_NEEDS = (
    *((f"AVX512-{part}", f"avx512_{part.lower()}") for part in ("F", "BW", "CD", "DQ", "VL")),
    ("AVX512-VBMI", "avx512_vbmi"),
    ("AVX512-VNNI", "avx512_vnni"),
)
_BF16_FLAGS = (*_AVX512_FLAGS, "-mavx512bf16")
_BF16_NEEDS = (("AVX512-BF16", "avx512_bf16"), *_AVX512_NEEDS)
_AMX_NEEDS = (("AMX-TILE", "amx_tile"), ("AMX-BF16", "amx_bf16"), ("AMX-INT8", "amx_int8"))

AMX_BF16 = KernelSet("amx-bf16", (*_BF16_FLAGS, "-DJETFLOCK_AMX"), (*_AMX_NEEDS, *_BF16_NEEDS))
AVX512_BF16 = KernelSet("avx512-bf16", _BF16_FLAGS, _BF16_NEEDS)
AVX512 = KernelSet("avx512", _AVX512_FLAGS, _AVX512_NEEDS)
AVX2 = KernelSet(
    "avx2",
    ("-march=x86-64-v3", "-DJETFLOCK_AVX2"),
    (("AVX2", "avx2"), ("FMA", "fma3"), ("BMI2", "bmi2"), ("F16C", "f16c")),
)
# The same bits as by AMX, slowly: for tests, and to compute again what such a worker has said.
AMX_EMULATED = KernelSet(
    "amx-bf16-emulated", (*_BF16_FLAGS, "-DJETFLOCK_AMX_EMULATED"), _BF16_NEEDS
)

KERNEL_SETS = (AMX_BF16, AVX512_BF16, AVX512, AVX2)
"""The best one first: the first that the processor has is chosen."""
NAMED_KERNEL_SETS = (*KERNEL_SETS, AMX_EMULATED)
"""With those that must be asked for."""
