"""The memory of what requests hear: keys and values of a window of audio, made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from worker.engine.cpu.attention_products import ROW_STEP, scored, weighted_sum
from worker.engine.cpu.cache_memory import CacheMemory
from worker.engine.cpu.model_runner import ModelRunner
from worker.engine.cpu.torch_attention import EXTEND_ROWS
from worker.engine.request.req_window import ReqWindow
from worker.engine.request.schedule_batch import ScheduleBatch
from worker.engine.request.step_result import StepHandle

# [num_mel_bins, WINDOW_FRAMES] -> [num_layers, 2, num_heads, num_sounds, head_dim]
Hear = Callable[[npt.NDArray[np.float32]], torch.Tensor]


class CrossShape(NamedTuple):
    """The shape of what a request keeps."""

    num_layers: int
    num_heads: int
    num_sounds: int
    head_dim: int


class _Group(NamedTuple):
    """Requests with as many tokens in a step, or a piece of one."""

    tokens: torch.Tensor  # [num_reqs * num_queries] int64, into the step's tokens
    rows: torch.Tensor  # [num_reqs] int64


class CrossCache:
    """A place for each request that runs, the number of its row, which the ledger gives and takes.

    A row holds the window that was heard there last, until another is: whoever comes with the same
    one, in another row too, need not hear it again. As in `TorchAttentionBackend` a token's result
    is the same in any company.
    """

    def __init__(self, shape: CrossShape, num_rows: int, dtype: torch.dtype) -> None:
        self._memory = CacheMemory()
        # [num_layers, 2, num_rows, num_heads, num_sounds, head_dim]
        self._data = self._memory.allocate((shape.num_layers, 2, num_rows, *shape[1:]), dtype)
        self._windows: list[ReqWindow | None] = [None] * num_rows
        self._groups: list[_Group] = []

    def release(self) -> None:
        """Its memory, until it is written again. No request may run."""
        self._memory.release()
        self._windows = [None] * len(self._windows)

    def plan(self, batch: ScheduleBatch, hear: Hear) -> None:
        """Once a step, before the first layer: what is new to its row is heard now."""
        for entry in batch.entries:
            if entry.req.window is not None:
                self._hold(entry.req.row, entry.req.window, hear)
        by_num_tokens: dict[int, list[tuple[int, int]]] = {}
        start = 0
        for entry in batch.entries:
            for begin in range(0, entry.num_tokens, EXTEND_ROWS):
                num_tokens = min(EXTEND_ROWS, entry.num_tokens - begin)
                by_num_tokens.setdefault(num_tokens, []).append((start + begin, entry.req.row))
            start += entry.num_tokens
        self._groups = [_group(size, places) for size, places in by_num_tokens.items()]

    def attend(self, q: torch.Tensor, layer_id: int) -> torch.Tensor:
        """[num_tokens, num_heads, head_dim] -> the same."""
        output = torch.empty_like(q)
        for tokens, rows in self._groups:
            keys, values = (each[rows].flatten(0, 1) for each in self._data[layer_id])
            by_req = q[tokens].view(len(rows), -1, *q.shape[1:])
            num_queries = by_req.shape[1]
            by_head = by_req.transpose(1, 2).flatten(0, 1)
            padded = torch.nn.functional.pad(by_head, (0, 0, 0, -num_queries % ROW_STEP))
            scores = scored(padded, keys)  # [num_reqs * num_heads, queries, num_sounds]
            weights = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
            heard = weighted_sum(weights, values)[:, :num_queries]
            by_req = heard.reshape(len(rows), -1, *heard.shape[1:])
            output[tokens] = by_req.transpose(1, 2).flatten(0, 1)
        return output

    def _hold(self, row: int, window: ReqWindow, hear: Hear) -> None:
        """Makes the row that of the window."""
        key = window.key
        places = [idx for idx, each in enumerate(self._windows) if each and each.key == key]
        if row not in places:
            if places:
                self._data[:, :, row] = self._data[:, :, places[0]]
            else:
                self._data[:, :, row] = hear(window.sound.window(window.seek))
        self._windows[row] = window
        window.is_heard = True


class HearingRunner:
    """A `BatchRunner` whose requests hear before they are computed."""

    def __init__(self, runner: ModelRunner, cross: CrossCache, hear: Hear) -> None:
        self._runner = runner
        self._cross = cross
        self._hear = hear

    @torch.inference_mode()
    def launch(self, batch: ScheduleBatch) -> StepHandle:
        self._cross.plan(batch, self._hear)
        return self._runner.launch(batch)


def _group(num_tokens: int, places: Sequence[tuple[int, int]]) -> _Group:
    """`places`: of each request its first token in the step, and its row."""
    starts, rows = torch.tensor(places).T
    return _Group((starts[:, None] + torch.arange(num_tokens)).view(-1), rows)
