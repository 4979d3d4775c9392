"""One piece of a run: a stage, of one model or one attention backend, in a process of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Task:
    """A stage that hangs, or breaks its CUDA context, takes no other with it."""

    stage: str  # a module of bench.gpu.stages
    limit_s: float  # its process is killed then
    model: str = ""  # of shapes.py; "": it has none
    backend: str = "auto"  # of attention

    @property
    def may_use_flashinfer(self) -> bool:
        """All engines may; of attention alone, those that ask for it."""
        return self.backend != "triton" and self.stage not in ("environment", "linears")

    @property
    def name(self) -> str:
        words = (self.stage, self.model, "" if self.backend == "auto" else self.backend)
        return " ".join(word for word in words if word)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
