"""One piece of a run: a stage, of one model or one attention backend, in a process of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Task:
    """A stage that hangs, or breaks its CUDA context, takes no other with it."""

    stage: str  # a module of bench.gpu.stages
    limit_s: float  # its process is killed then
    model: str = ""  # of shapes.py; "": it has none
    backend: str = "auto"  # of attention
    engine: dict[str, Any] = field(default_factory=dict)  # what an EngineConfig has otherwise

    @property
    def name(self) -> str:
        words = (self.stage, self.model, "" if self.backend == "auto" else self.backend)
        return " ".join(word for word in words if word)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
