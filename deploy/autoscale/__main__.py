"""`jetflock autoscale MODEL`, or `python -m deploy.autoscale`: reads the configuration, starts."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import asyncio
from typing import Annotated

from deploy.autoscale.autoscale_config import AutoscaleConfig
from deploy.autoscale.host_pool import HostPool
from deploy.local.port_claim import claimed_ports
from deploy.local.preflight import find_model
from deploy.local.role_launches import RoleLaunches, RolePrograms
from deploy.local.stack import environ_of, log_format_of
from deploy.local.terminal import Terminal
from shared.cli.program import Program
from shared.cluster import open_cluster
from shared.config import FLAT
from shared.service.move import oldest_prefix
from shared.subjects import new_incarnation
from shared.telemetry.log import setup_logging
from shared.telemetry.metrics import new_registry

_FIRST = (
    "model_name",
    "workers",
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
    setup_logging("autoscale", config.log_level, log_format)
    files = find_model(
        model,
        needs_weights=not (config.scripted or config.load_format == "dummy"),
        has_dummy_weights=config.load_format == "dummy",
        max_context_len=config.max_context_len,
        quantization=config.quantization,
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
