"""One local stack, from configuration to the end: refuses first, then starts."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from deploy.local.data_folder import DataFolder
from deploy.local.nats_child import NatsChild, StoreLimits, find_nats_server
from deploy.local.preflight import check_extras, check_ports, find_model, tell_of_download
from deploy.local.ready_block import opening_words
from deploy.local.role_launches import RoleLaunches, RolePrograms
from deploy.local.serve_config import ServeConfig
from deploy.local.start_times import StartTimes
from deploy.local.supervisor import Supervisor
from deploy.local.terminal import Terminal
from shared.log import LogFormat, setup_logging
from shared.model_files import ModelFiles
from shared.trace_export import check_traces


def run_stack(model: str, config: ServeConfig, programs: RolePrograms | None = None) -> None:
    """Returns when a person stops it. Raises ConfigError before anything is started, or after
    everything was stopped again."""
    config = config.completed(model)
    times, terminal = StartTimes(), Terminal()
    log_format = log_format_of(config, terminal)
    setup_logging("serve", config.log_level, log_format)
    check_extras()
    check_traces(config.otel)
    check_ports(config)
    has_dummy_weights = config.load_format == "dummy"
    tell_of_download(model, terminal)
    files = find_model(
        model,
        needs_weights=not (config.scripted or has_dummy_weights),
        has_dummy_weights=has_dummy_weights,
        max_context_len=config.max_context_len,
    )
    with contextlib.ExitStack() as stack:
        nats_child = None
        if config.has_own_nats:
            data = stack.enter_context(DataFolder.lock(config.own_data_dir))
            nats_child, config = _prepare_nats(config, data)
        launches = RoleLaunches(config, files.path, log_format, programs or RolePrograms())
        for words in opening_words(config, files, nats_child is not None):
            terminal.say(words)
        asyncio.run(_supervise(config, files, launches, nats_child, terminal, times))


def log_format_of(config: ServeConfig, terminal: Terminal) -> LogFormat:
    """Children write to a pipe and would not know that a person looks on."""
    if config.log_format != "auto":
        return config.log_format
    return "pretty" if terminal.is_interactive else "json"


def _prepare_nats(config: ServeConfig, data: DataFolder) -> tuple[NatsChild, ServeConfig]:
    """The server to start, and the configuration that points to it."""
    limits = StoreLimits.of(config).that_fit(data.free_bytes)
    child = NatsChild.prepare(find_nats_server(), config.nats_port, data, limits)
    return child, replace(
        config,
        nats_url=child.url,
        queue_max_bytes=limits.queue_max_bytes,
        log_max_bytes=limits.log_max_bytes,
        files_max_bytes=limits.files_max_bytes,
        response_store_bytes=limits.response_store_bytes,
        dead_max_bytes=limits.dead_max_bytes,
    )


async def _supervise(
    config: ServeConfig,
    files: ModelFiles,
    launches: RoleLaunches,
    nats_child: NatsChild | None,
    terminal: Terminal,
    times: StartTimes,
) -> None:
    # Made here because its parts belong to the running loop.
    await Supervisor(config, files, launches, nats_child, terminal, times).run()
