"""What a draft is trained with: the command tells it to the process that has torch."""

from __future__ import annotations

from typing import Literal

import msgspec

DraftKind = Literal["model", "eagle3", "mtp"]


class TrainConfig(msgspec.Struct, frozen=True):
    """How one draft model, or head, is trained."""

    model_path: str  # that it is to guess for
    prompts: str  # JSON lines, each with "messages" or "prompt"
    out: str  # folder of the new checkpoint
    kind: DraftKind = "model"
    num_layers: int = 1  # of a draft model, begun as layers of the model
    max_prompts: int = 4096
    max_answer_len: int = 160  # tokens
    num_steps: int = 600
    batch_tokens: int = 2048
    max_lr: float = 2e-3
    num_threads: int | None = None
    seed: int = 0
