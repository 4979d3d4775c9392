"""What a model reads of a step; where the step's keys and values go is its attention's business."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from worker.engine.lora.lora_adapter import LoraBatch


class ImageRows(NamedTuple):
    """What the model sees in the place of some tokens' embeddings."""

    start: int  # index of the first of them in the step
    rows: torch.Tensor  # [num_rows, hidden_size]


class ModelInput(Protocol):
    """Tokens of all requests, one after the other, on the device of the model."""

    @property
    def input_ids(self) -> torch.Tensor:
        """[num_tokens] int64."""
        ...

    @property
    def positions(self) -> torch.Tensor:
        """[num_tokens] int64."""
        ...

    @property
    def image_rows(self) -> Sequence[ImageRows]: ...

    @property
    def loras(self) -> LoraBatch | None:
        """None: no request of this step has an adapter."""
        ...
