"""What `jetflock autoscale` is told: the flags of its workers, and how many there may be."""

# No `from __future__ import annotations` here: the fields' types are read at run time.

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

from cyclopts import Parameter

from deploy.autoscale.scale_config import ScaleConfig, WorkerRange
from deploy.local.serve_config import ServeConfig
from worker.config import WorkerConfig

_NOT_A_FLAG = Parameter(parse=False, show=False)


@dataclass(frozen=True, kw_only=True)
class AutoscaleConfig(WorkerConfig, ScaleConfig):
    """All flags of a worker are flags of it too: its workers get them."""

    role: ClassVar[str] = "admin"  # of the autoscaler itself, not of its workers

    workers: int | str = "0..1"
    """Worker processes on this host: a range as 0..8, or a number to keep so many running."""

    # Made here for each start of a worker, or given as MODEL.
    worker_id: Annotated[str | None, _NOT_A_FLAG] = None
    model_path: Annotated[str, _NOT_A_FLAG] = ""

    @property
    def worker_range(self) -> WorkerRange:
        """Raises ConfigError."""
        return WorkerRange.parse(self.workers)

    def serve_config(self, model: str) -> ServeConfig:
        """That of a `jetflock serve` with such workers. Raises ConfigError."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return ServeConfig(**values).completed(model)
