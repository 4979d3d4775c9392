"""`jetflock autoscale MODEL`, or `python -m deploy.autoscale`: reads the configuration, starts."""

# No `from __future__ import annotations` here: types are read at run time.

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

from cyclopts import Parameter

from deploy.autoscale.host_pool import HostPool
from deploy.local.port_claim import claimed_ports
from deploy.local.preflight import find_model
from deploy.local.role_launches import RoleLaunches, RolePrograms
from deploy.local.serve_config import ServeConfig
from deploy.local.stack import environ_of, log_format_of
from deploy.local.terminal import Terminal
from deploy.scaling.scale_config import ScaleConfig, WorkerRange
from shared.checkpoint.model_options import ModelOptions
from shared.cli.program import Program
from shared.cluster import open_cluster
from shared.config import FLAT
from shared.service.move import oldest_prefix
from shared.subjects import new_incarnation
from shared.telemetry.log import setup_logging
from shared.telemetry.metrics import new_registry
from worker.config import WorkerConfig

_NOT_A_FLAG = Parameter(parse=False, show=False)


@dataclass(frozen=True, kw_only=True)
class AutoscaleConfig(WorkerConfig, ScaleConfig):
    """All flags of a worker are flags of it too: its workers get them."""

    nats_role: ClassVar[str] = "admin"  # of the autoscaler itself, not of its workers

    workers: int | str = "0..1"
    """Worker processes on this host: a range as 0..8, or a number to keep so many running."""
    decode_workers: int | str = 0
    """Of these: as many have --role decode, and the others --role prefill, each scaled by its own
    load; 0: all have --role."""

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


_FIRST = (
    "model_name",
    "workers",
    "decode_workers",
    "nats_url",
    "scale_idle_s",
    "scale_target_s",
    "metrics_port",
)

_SUMMARY = """\
Keep as many workers of MODEL on this host as its clients need, within a range.

All flags of `jetflock worker` are passed on to the workers; they may stand behind `--`."""
_DEFAULTS = AutoscaleConfig()


def main(model: str, /, config: Annotated[AutoscaleConfig, FLAT] = _DEFAULTS) -> None:
    """Scale MODEL: a folder in Hugging Face format, or a hub id."""
    config.check()
    serve_config = config.serve_config(model)
    terminal = Terminal(as_json=config.log_format == "json")
    log_format = log_format_of(terminal)
    setup_logging("autoscale", config.log_level, log_format, colours=terminal.is_interactive)
    files = find_model(
        model,
        needs_weights=not (config.scripted or config.load_format == "dummy"),
        has_dummy_weights=config.load_format == "dummy",
        options=ModelOptions.of(config),
    )
    launches = RoleLaunches(
        serve_config, files.path, log_format, RolePrograms(), environ_of(terminal)
    )
    scaler_id = new_incarnation("autoscale")

    async def run() -> None:
        registry = new_registry("autoscale")
        async with open_cluster(
            config, scaler_id, registry=registry, choose=oldest_prefix
        ) as cluster:
            pool = HostPool(serve_config, files, launches, terminal, registry, scaler_id)
            pool.shutdown.listen(lambda: serve_config.leave_timeout_s)
            await pool.run(cluster)

    with claimed_ports(serve_config):
        asyncio.run(run())


PROGRAM = Program(
    name="jetflock autoscale",
    summary=_SUMMARY,
    main=main,
    first=_FIRST,
    ignored=("--",),
    takes_peer_flags=True,
)

if __name__ == "__main__":
    PROGRAM.run()
