"""The parameters of a draw as a few bytes, so that those of a batch are arrays at once."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from shared.protocol import SamplingParams

_STRUCT = struct.Struct("<fqff")
_DTYPE = np.dtype(
    [("temperature", "<f4"), ("top_k", "<i8"), ("top_p", "<f4"), ("min_p", "<f4")], align=False
)


def pack_draw_params(sampling: SamplingParams) -> bytes:
    """Once a request."""
    return _STRUCT.pack(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def unpack_draw_params(packed: Iterable[bytes]) -> npt.NDArray[np.void]:
    """[num_rows], with the fields temperature, top_k, top_p and min_p."""
    return np.frombuffer(b"".join(packed), _DTYPE)
