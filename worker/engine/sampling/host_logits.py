"""Logits on the host: what is put there is there already."""

from __future__ import annotations

import numpy as np
import torch

from worker.engine.grammar.grammar_matcher import Bitmask


class HostLogits:
    """A `LogitPlace`."""

    def put(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def forbid(self, logits: torch.Tensor, rows: list[int], bitmask: Bitmask) -> None:
        bits = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")
        is_forbidden = torch.from_numpy(bits[:, : logits.shape[1]] == 0)
        for row, is_forbidden_here in zip(rows, is_forbidden, strict=True):
            logits[row].masked_fill_(is_forbidden_here, -torch.inf)
