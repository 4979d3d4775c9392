"""Builds the C++ decoder, now or ahead, and loads it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.telemetry.log import get_logger
from worker.engine.device.cache_folder import cache_folder
from worker.engine.device.cache_lock import cache_lock
from worker.engine.native.kernel_set import KernelSet

SOURCE = "decoder.cpp"
NUM_PLANES = 2  # kPlanes of stored_codes.h
_CHECKSUM_PARTS = 4  # kChecksumParts
COMPILERS = ("c++", "g++", "clang++")
# No contraction: no compiler may take a product and a sum for one instruction where another does
# not, so all builds of a kernel set make the same bits.
FLAGS = ("-O3", "-ffp-contract=off", "-std=c++20", "-shared", "-fPIC", "-pthread", "-w")
BUILD_TIMEOUT_S = 300.0

log = get_logger(__name__)


class NativeUnavailable(Exception):
    """There is no native decoder on this machine; the message says why."""


class LinearStruct(ctypes.Structure):
    """`Linear` of linear_weights.h."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("layout", ctypes.c_int64),
        ("group_size", ctypes.c_int64),
        ("num_groups", ctypes.c_int64),
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("code_book", ctypes.c_void_p),
        ("minima", ctypes.c_void_p),
        ("scale_steps", ctypes.c_void_p),
        ("minimum_steps", ctypes.c_void_p),
        ("share_bits", ctypes.c_int64),
        ("zero_point", ctypes.c_int64),
        ("span_size", ctypes.c_int64),
        ("rounds_rows", ctypes.c_int64),
        ("input_scale", ctypes.c_float),
        ("by_vectors", ctypes.c_int64),
        ("order", ctypes.c_void_p),
    )


class BitPlaneStruct(ctypes.Structure):
    """`BitPlane` of stored_codes.h."""

    _fields_ = (
        ("start", ctypes.c_int64),
        ("num_bytes", ctypes.c_int64),
        ("num_bits", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("shift", ctypes.c_int64),
    )


class BlockFormatStruct(ctypes.Structure):
    """`BlockFormat` of stored_codes.h."""

    _fields_ = (
        ("num_values", ctypes.c_int64),
        ("num_bytes", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("place", ctypes.c_int64),
        ("flipped", ctypes.c_int64),
        ("lift", ctypes.c_int64),
        ("high_first", ctypes.c_int64),
        ("planes", BitPlaneStruct * NUM_PLANES),
    )


class StoredRowsStruct(ctypes.Structure):
    """`StoredRows` of stored_codes.h."""

    _fields_ = (
        ("formats", ctypes.c_void_p),
        ("format_of_row", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("zero", ctypes.c_int64),
        ("order", ctypes.c_void_p),
    )


class NormStruct(ctypes.Structure):
    """`Norm` of norms.h."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class InnerStruct(ctypes.Structure):
    """`Inner` of activations.h."""

    _fields_ = (
        ("activation", ctypes.c_int64),
        ("is_gated", ctypes.c_int64),
        ("slope", ctypes.c_float),
        ("bound", ctypes.c_float),
    )


class ExpertsStruct(ctypes.Structure):
    """`Experts` of experts.h."""

    _fields_ = (
        ("gate_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("num_experts", ctypes.c_int64),
        ("inner", InnerStruct),
    )


class RouterStruct(ctypes.Structure):
    """`Router` of router.h."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("correction", ctypes.c_void_p),
        ("num_experts", ctypes.c_int64),
        ("has_shared_gate", ctypes.c_int64),
        ("num_chosen", ctypes.c_int64),
        ("scoring", ctypes.c_int64),
        ("num_groups", ctypes.c_int64),
        ("num_chosen_groups", ctypes.c_int64),
        ("num_group_scores", ctypes.c_int64),
        ("is_normed", ctypes.c_int64),
        ("norm_eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


class LayerStruct(ctypes.Structure):
    """`LayerWeights` of decoder.cpp."""

    _fields_ = (
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("num_kept", ctypes.c_int64),
        ("before_attention", NormStruct),
        ("qkv", LinearStruct),
        ("query_norm", NormStruct),
        ("key_norm", NormStruct),
        ("value_norm", NormStruct),
        ("sinks", ctypes.c_void_p),
        ("output", LinearStruct),
        ("after_attention", NormStruct),
        ("before_mlp", NormStruct),
        ("after_mlp", NormStruct),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        ("inner", InnerStruct),
        ("experts", ExpertsStruct),
        ("router", RouterStruct),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("rope", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("has_window_pages", ctypes.c_int64),
        ("is_causal", ctypes.c_int64),
        ("grows_queries", ctypes.c_int64),
        ("has_gates", ctypes.c_int64),
        ("attention_scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
        ("stream_scale", ctypes.c_float),
    )


class ShapeStruct(ctypes.Structure):
    """`DecoderShape` of decoder.cpp."""

    _fields_ = (
        ("hidden_size", ctypes.c_int64),
        ("page_size", ctypes.c_int64),
        ("kv_format", ctypes.c_int64),
        ("head_norm", ctypes.c_int64),
        ("norm_kind", ctypes.c_int64),
        ("norm_eps", ctypes.c_float),
        ("is_parallel", ctypes.c_int64),
        ("norms_embeddings", ctypes.c_int64),
        ("qkv_bound", ctypes.c_float),
        ("embedding_scale", ctypes.c_float),
        ("embeddings", LinearStruct),
        ("positions", ctypes.c_void_p),
        ("final_norm", NormStruct),
        ("lm_head", LinearStruct),
    )


class AnglesStruct(ctypes.Structure):
    """`Angles` of decoder.cpp."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
    )


class PagePlacesStruct(ctypes.Structure):
    """`PagePlaces` of decoder.cpp."""

    _fields_ = (
        ("out_loc", ctypes.c_void_p),
        ("page_table", ctypes.c_void_p),
    )


class BatchStruct(ctypes.Structure):
    """`Batch` of decoder.cpp."""

    _fields_ = (
        ("num_tokens", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("max_pages", ctypes.c_int64),
        ("input_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("reach", ctypes.c_void_p),
        ("angles", ctypes.c_void_p),
        ("query_factors", ctypes.c_void_p),
        ("given_rows", ctypes.c_void_p),
        ("given", ctypes.c_void_p),
        ("num_given", ctypes.c_int64),
        ("num_deep", ctypes.c_int64),
        ("query_lens", ctypes.c_void_p),
        ("places", PagePlacesStruct),
        ("window_places", PagePlacesStruct),
        ("hidden", ctypes.c_void_p),
        ("streams", ctypes.c_void_p),
        ("stream_layers", ctypes.c_void_p),
        ("num_streams", ctypes.c_int64),
        ("loras", ctypes.c_void_p),
    )


class ExpertStepStruct(ctypes.Structure):
    """`ExpertStep` of experts.h."""

    _fields_ = (
        ("num_tokens", ctypes.c_int64),
        ("num_chosen", ctypes.c_int64),
        ("inputs", ctypes.c_void_p),
        ("expert_ids", ctypes.c_void_p),
        ("shares", ctypes.c_void_p),
    )


class NativeLibrary:
    """The functions of decoder.cpp. Raises NativeUnavailable where its kernel set cannot run."""

    def __init__(self, path: Path, kernel_set: KernelSet) -> None:
        self.kernel_set = kernel_set
        library = ctypes.CDLL(str(path))
        pointer, integer, small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        layers = ctypes.POINTER(LayerStruct)
        shape, batch = ctypes.POINTER(ShapeStruct), ctypes.POINTER(BatchStruct)
        self.allocate = _function(library, "allocate", pointer, (integer,))
        self.pack_linear = _function(
            library, "pack_linear", None, (pointer, integer, integer, small, small, pointer)
        )
        self.pack_codes = _function(
            library, "pack_codes", None, (integer, pointer, integer, integer, small, small, pointer)
        )
        stored = ctypes.POINTER(StoredRowsStruct)
        self.pack_stored = _function(
            library, "pack_stored", None, (integer, stored, integer, integer, small, small, pointer)
        )
        prepare = _function(library, "prepare", ctypes.c_char_p, ())
        obstacle: bytes | None = prepare()
        if obstacle is not None:
            raise NativeUnavailable(obstacle.decode())
        self._checksum = _function(library, "checksum", None, (pointer, integer, pointer))
        self.free = _function(library, "free", None, (pointer,))
        self.decoder_new = _function(
            library, "decoder_new", pointer, (shape, layers, integer, small)
        )
        self.decoder_free = _function(library, "decoder_free", None, (pointer,))
        self.forward = _function(library, "decoder_forward", None, (pointer, batch))
        self.logits = _function(
            library, "decoder_logits", None, (pointer, pointer, integer, pointer)
        )
        linear = ctypes.POINTER(LinearStruct)
        self.read_rows = _function(
            library, "read_rows", None, (linear, ctypes.c_float, pointer, integer, pointer)
        )
        experts, step = ctypes.POINTER(ExpertsStruct), ctypes.POINTER(ExpertStepStruct)
        self.product_team_new = _function(library, "product_team_new", pointer, (small,))
        self.product_team_free = _function(library, "product_team_free", None, (pointer,))
        self.linear_forward = _function(
            library, "linear_forward", None, (pointer, linear, pointer, integer, pointer)
        )
        self.experts_forward = _function(
            library, "experts_forward", None, (pointer, experts, step, pointer)
        )

    def checksum(self, data: memoryview) -> bytes:
        """The `Checksum` of packed files; of one byte or more."""
        import numpy as np  # which the image's build of this library has not

        sums = (ctypes.c_uint32 * _CHECKSUM_PARTS)()
        self._checksum(np.frombuffer(data, np.uint8).ctypes.data, len(data), sums)
        return bytes(sums)

    @classmethod
    def load(cls, kernel_set: KernelSet) -> NativeLibrary:
        """Built ahead, before, or now. Raises NativeUnavailable."""
        path = _library_path(kernel_set)
        if not path.exists():
            _build_once(path, kernel_set)
        try:
            return cls(path, kernel_set)
        except OSError as exc:
            raise NativeUnavailable(f"cannot load {path}: {exc}") from exc


def _function(
    library: ctypes.CDLL, name: str, result: type | None, arguments: Sequence[type]
) -> Any:
    function = getattr(library, f"jetflock_{name}")
    function.restype, function.argtypes = result, arguments
    return function


def is_at_hand(kernel_set: KernelSet) -> bool:
    """Whether it is built, or there is a compiler that may build it."""
    try:
        return _compiler() is not None or _library_path(kernel_set).exists()
    except NativeUnavailable:
        return False


def _library_path(kernel_set: KernelSet) -> Path:
    path = prebuilt_library(kernel_set)
    return path if path.exists() else _cache_folder() / path.name


def _compiler() -> str | None:
    return os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)


def prebuilt_library(kernel_set: KernelSet) -> Path:
    """Where `python -m worker.engine.native` puts it: beside its source, named after it."""
    digest = hashlib.sha256(" ".join((*FLAGS, *kernel_set.flags)).encode())
    for source in sorted(Path(__file__).parent.glob("*.[ch]*")):
        if source.suffix in (".h", ".cpp"):
            digest.update(source.read_bytes())
    return Path(__file__).with_name(f"decoder-{kernel_set.name}-{digest.hexdigest()[:16]}.so")


def _build_once(path: Path, kernel_set: KernelSet) -> None:
    """Workers that start at the same time wait for the first of them."""
    with cache_lock(path.with_suffix(".lock"), BUILD_TIMEOUT_S):
        if not path.exists():
            build(path, kernel_set)


def build(path: Path, kernel_set: KernelSet) -> None:
    """Whoever builds at the same time makes the same file: the last rename wins."""
    compiler = _compiler()
    if compiler is None:
        raise NativeUnavailable("there is no C++ compiler (Debian: apt install g++)")
    source = Path(__file__).with_name(SOURCE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            output = Path(folder) / path.name
            subprocess.run(  # noqa: S603 - our own source, the user's compiler
                [compiler, *FLAGS, *kernel_set.flags, str(source), "-o", str(output)],
                check=True,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
            )
            output.replace(path)
    except subprocess.CalledProcessError as exc:
        lines = exc.stderr.strip().splitlines()
        reason = next((line for line in lines if "error" in line), lines[-1] if lines else "")
        raise NativeUnavailable(f"{compiler} does not compile {source.name}: {reason}") from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NativeUnavailable(f"cannot build {source.name}: {exc}") from exc
    log.info("native_decoder_built", path=str(path), kernel_set=kernel_set.name)


def _cache_folder() -> Path:
    folder = cache_folder()
    if folder is None:
        raise NativeUnavailable("there is no home directory: set XDG_CACHE_HOME")
    return folder
