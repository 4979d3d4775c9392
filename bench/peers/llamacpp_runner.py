"""Runs llama.cpp through llama-cpp-python's bindings: one batch a step, rows of all sequences.

The package's own classes run one sequence at a time, so the loop is ours: tokens that decode come
first, prompts fill the batch. A prefix that all prompts share is computed once and copied. A
context has just the room that a run needs, and is made before the run's time begins.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from bench.peers.gguf_file import write_gguf
from bench.peers.runner import RequestTrace, RunnerSettings, Stopwatch, serve

MAX_STEP_TOKENS = 2048  # llama.cpp's own default, as the one of 512 rows a graph
LEN_GRAIN = 256


@dataclass(slots=True)
class _Sequence:
    """One request: `token_ids[num_computed:]` goes into the next batches."""

    seq_id: int
    token_ids: list[int]
    num_computed: int
    trace: RequestTrace
    output_len: int

    @property
    def is_finished(self) -> bool:
        return len(self.trace.token_ids) == self.output_len


class LlamacppRunner:
    """The model, and the context of the last run."""

    def __init__(self, settings: RunnerSettings) -> None:
        self.version = llama_cpp.__version__
        self._settings = settings
        path = str(_file(settings)).encode()
        self._model = llama_cpp.llama_model_load_from_file(
            path, llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"cannot load {path.decode()}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        self._context: Any = None
        self._context_shape = (0, 0)
        self._batch = llama_cpp.llama_batch_init(MAX_STEP_TOKENS, 0, 1)

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        self._make_context(len(prompts), max(map(len, prompts)) + output_len)
        shared_len = _shared_len(prompts)
        stopwatch = Stopwatch()
        self._compute_shared(prompts, shared_len)
        sequences = [
            _Sequence(seq_id, list(prompt), shared_len, RequestTrace(), output_len)
            for seq_id, prompt in enumerate(prompts)
        ]
        while rows := list(_rows(sequences)):
            sampled = self._decode(rows)
            now_s = stopwatch()
            for sequence, token_id in zip(_samplers(rows), sampled, strict=True):
                sequence.token_ids.append(token_id)
                sequence.trace.add([token_id], now_s)
        return [sequence.trace for sequence in sequences]

    def close(self) -> None:
        """Nothing: it is all in this process."""

    def _make_context(self, num_seqs: int, max_len: int) -> None:
        shape = (num_seqs, -(-max_len // LEN_GRAIN) * LEN_GRAIN)
        if shape == self._context_shape:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
            return
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = num_seqs
        params.n_ctx = num_seqs * shape[1]
        params.n_batch = MAX_STEP_TOKENS
        params.n_threads = params.n_threads_batch = self._settings.num_threads
        params.kv_unified = False
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._context_shape = shape

    def _compute_shared(self, prompts: list[list[int]], shared_len: int) -> None:
        if shared_len == 0:
            return
        prefix = _Sequence(0, prompts[0][:shared_len], 0, RequestTrace(), 1)
        self._decode(list(_rows([prefix])))
        memory = llama_cpp.llama_get_memory(self._context)
        for seq_id in range(1, len(prompts)):
            llama_cpp.llama_memory_seq_cp(memory, 0, seq_id, -1, -1)

    def _decode(self, rows: list[_Row]) -> list[int]:
        """The most likely next ids of the rows that are last of their sequence, in their order."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for idx, row in enumerate(rows):
            batch.token[idx] = row.token_id
            batch.pos[idx] = row.position
            batch.n_seq_id[idx] = 1
            batch.seq_id[idx][0] = row.sequence.seq_id
            batch.logits[idx] = row.is_last
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise SystemExit("llama_decode failed")
        num_outputs = sum(row.is_last for row in rows)
        address = ctypes.cast(llama_cpp.llama_get_logits(self._context), ctypes.c_void_p)
        logits = np.ctypeslib.as_array(
            ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (num_outputs, self._vocab_size)
        )
        return [int(token_id) for token_id in logits.argmax(axis=1)]


@dataclass(frozen=True, slots=True)
class _Row:
    sequence: _Sequence
    token_id: int
    position: int
    is_last: bool


def _rows(sequences: list[_Sequence]) -> Iterator[_Row]:
    """The next batch; what it takes counts as computed. Short work first: decodes, then prompts."""
    num_left = MAX_STEP_TOKENS
    unfinished = [sequence for sequence in sequences if not sequence.is_finished]
    for sequence in sorted(unfinished, key=lambda one: not one.trace.token_ids):
        begin = sequence.num_computed
        end = min(len(sequence.token_ids), begin + num_left)
        for position in range(begin, end):
            is_last = position == len(sequence.token_ids) - 1
            yield _Row(sequence, sequence.token_ids[position], position, is_last)
        sequence.num_computed = end
        num_left -= end - begin


def _samplers(rows: list[_Row]) -> list[_Sequence]:
    return [row.sequence for row in rows if row.is_last]


def _shared_len(prompts: list[list[int]]) -> int:
    """Leading ids that all prompts have, but never a whole prompt."""
    if len(prompts) == 1:
        return 0
    shared_len = 0
    for column in zip(*(prompt[:-1] for prompt in prompts), strict=False):
        if len(set(column)) > 1:
            break
        shared_len += 1
    return shared_len


def convert(settings: RunnerSettings) -> None:
    whole, file = settings.converted(".gguf"), _file(settings)
    write_gguf(settings.model, whole, settings.dtype)
    if file.exists():
        return
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{settings.extra['gguf']}")
    params.nthread = settings.num_threads
    made = file.with_suffix(".new")
    paths = [str(path).encode() for path in (whole, made)]
    if llama_cpp.llama_model_quantize(*paths, ctypes.byref(params)) != 0:
        raise SystemExit(f"cannot make {file}")
    made.replace(file)


def _file(settings: RunnerSettings) -> Path:
    """In the type of `--set gguf=Q4_K_M`, else in that of `dtype`."""
    kind = settings.extra.get("gguf")
    return settings.converted(".gguf" if kind is None else f"-{kind}.gguf")


if __name__ == "__main__":
    serve(LlamacppRunner, convert)
