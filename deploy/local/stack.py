"""One local stack, from configuration to the end: refuses first, then starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace

from deploy.local.data_folder import DataFolder
from deploy.local.http_probe import http_url
from deploy.local.nats_binary import NatsBinary, find_nats_server
from deploy.local.nats_child import NatsChild
from deploy.local.port_claim import claimed_ports
from deploy.local.preflight import (
    announce_download,
    check_context,
    check_engine,
    check_extras,
    check_ports,
    find_model,
)
from deploy.local.ready_block import base_url, opening_words
from deploy.local.role_launches import RoleLaunches, RolePrograms
from deploy.local.running_stack import RunningStack, announced
from deploy.local.serve_config import ServeConfig
from deploy.local.start_times import StartTimes
from deploy.local.supervisor import Supervisor
from deploy.local.terminal import Terminal
from shared.checkpoint.model_files import ModelFiles
from shared.checkpoint.model_options import ModelOptions
from shared.storage.byte_budget import ByteBudget
from shared.telemetry.log import LogFormat, setup_logging
from shared.telemetry.trace_export import check_traces


def run_stack(model: str, config: ServeConfig, programs: RolePrograms | None = None) -> None:
    """Returns when a person stops it. Raises ConfigError before anything is started, or after
    everything was stopped again."""
    config = config.completed(model)
    times, terminal = StartTimes(), Terminal(as_json=config.log_format == "json")
    log_format = log_format_of(terminal)
    setup_logging("serve", config.log_level, log_format, colours=terminal.is_interactive)
    check_extras()
    check_traces(config.otel)
    check_engine(config)
    check_ports(config)
    has_dummy_weights = config.load_format == "dummy"
    announce_download(model, terminal)
    files = find_model(
        model,
        needs_weights=not (config.scripted or has_dummy_weights),
        has_dummy_weights=has_dummy_weights,
        options=ModelOptions.of(config),
    )
    if not config.scripted:
        check_context(files, config.max_context_len)
    with contextlib.ExitStack() as stack:
        stack.enter_context(claimed_ports(config))
        nats_child = None
        if config.has_own_nats:
            data = stack.enter_context(DataFolder.lock(config.own_data_dir))
            binary = find_nats_server(config.nats_server)
            if binary.remark:
                terminal.say(f"{binary.remark}; {binary.path} is run ({binary.origin})")
            nats_child, config = _prepare_nats(config, data, binary)
        launches = RoleLaunches(
            config, files.path, log_format, programs or RolePrograms(), environ_of(terminal)
        )
        stack.enter_context(announced(_running(config, files, nats_child)))
        for words in opening_words(config, files, nats_child is not None):
            terminal.say(words)
        asyncio.run(_supervise(config, files, launches, nats_child, terminal, times))


def _running(config: ServeConfig, files: ModelFiles, nats_child: NatsChild | None) -> RunningStack:
    """What others have to know of this one."""
    assert config.model_name is not None
    return RunningStack.of_this_process(
        url=base_url(config),
        nats_url=config.nats_url,
        prefix=config.prefix,
        model=config.model_name,
        data_dir="" if nats_child is None else str(config.own_data_dir),
        admin_url=http_url(config.admin_host, config.admin_port) if config.admin_port else "",
        model_path=str(files.path),
    )


def log_format_of(terminal: Terminal) -> LogFormat:
    """The log format of the children, who write to a pipe: text, as the supervisor's own lines,
    unless told.
    """
    return "json" if terminal.is_json else "pretty"


def _prepare_nats(
    config: ServeConfig, data: DataFolder, binary: NatsBinary
) -> tuple[NatsChild, ServeConfig]:
    """The server to start, and the configuration that points to it."""
    budget = ByteBudget.of(config).that_fits(data.free_bytes)
    child = NatsChild.prepare(binary.path, config.nats_port, data, budget)
    return child, replace(
        config,
        nats_url=child.url,
        queue_max_bytes=budget.queue_max_bytes,
        log_max_bytes=budget.log_max_bytes,
        results_max_bytes=budget.results_max_bytes,
        files_max_bytes=budget.files_max_bytes,
        response_store_bytes=budget.response_store_bytes,
        dead_max_bytes=budget.dead_max_bytes,
        objects_max_bytes=budget.objects_max_bytes,
        keys_max_bytes=budget.keys_max_bytes,
        bills_max_bytes=budget.bills_max_bytes or config.bills_max_bytes,
    )


def environ_of(terminal: Terminal) -> Mapping[str, str]:
    """The environment of the children: colours are for who looks at a terminal."""
    return os.environ if terminal.is_interactive else os.environ | {"NO_COLOR": "1"}


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
