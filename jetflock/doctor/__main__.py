"""`jetflock doctor [MODEL]`: one line a check, and a status."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import asyncio
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from deploy.local.data_folder import default_data_dir
from deploy.local.running_stack import running_stacks
from jetflock.doctor.finding import Finding, Verdict, ok, print_as_they_come, print_findings_json
from jetflock.doctor.machine_checks import disk_findings, kv_disk_finding, machine_findings
from jetflock.doctor.nats_checks import nats_findings
from jetflock.running.running_service import choose_stack
from shared.cli.program import Program
from shared.config import FLAT, ClusterConfig


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(ClusterConfig):
    """Flags of `jetflock doctor`."""

    nats_url: str = ""
    """NATS servers, comma separated; by default those of the jetflock serve that runs here, if one
    does."""
    nats_connect_timeout_s: float = 3.0
    """Time that a NATS server may take to answer."""
    host: str = "127.0.0.1"
    """Address that the service listens on, or will."""
    port: int = 8000
    """Port of the service."""
    data_dir: Path | None = None
    """Folder of jetflock serve; default ~/.local/state/jetflock/port-PORT."""
    kv_disk_dir: Path | None = None
    """Folder of --kv-disk-dir, which is looked at, too."""
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print findings as JSON."""


_SUMMARY = """\
Look for what keeps jetflock from running well: this machine, NATS, and the files of MODEL.

Each line is ok, warn (it runs, with a loss) or fail, with a remedy. Status 1 if one is fail."""
_DEFAULTS = DoctorConfig()


def main(model: str | None = None, /, config: Annotated[DoctorConfig, FLAT] = _DEFAULTS) -> None:
    """MODEL is a folder in Hugging Face format, or a hub id."""
    show = print_findings_json if config.as_json else print_as_they_come
    seen = show(_findings(model, config))
    raise SystemExit(int(any(finding.verdict is Verdict.FAIL for finding in seen)))


def of_what_runs(config: DoctorConfig) -> DoctorConfig:
    """That of the `jetflock serve` that is meant: by its folder or port, else the only one."""
    stacks = running_stacks()
    if config.data_dir is not None:
        stacks = [stack for stack in stacks if stack.data_dir == str(_data_folder(config))]
    elif config.port != DoctorConfig.port:
        stacks = [stack for stack in stacks if urlsplit(stack.url).port == config.port]
    if config.nats_url or not stacks:
        return config
    stack = choose_stack(stacks, "--nats-url", lambda each: each.nats_url)
    return dataclasses.replace(
        config,
        nats_url=stack.nats_url,
        prefix=stack.prefix if config.prefix == DoctorConfig.prefix else config.prefix,
        port=urlsplit(stack.url).port or config.port,
        data_dir=Path(stack.data_dir) if stack.data_dir else config.data_dir,
    )


def _data_folder(config: DoctorConfig) -> Path:
    return (config.data_dir or default_data_dir(config.port)).expanduser().absolute()


def _findings(model: str | None, config: DoctorConfig) -> Iterator[Finding]:
    config = of_what_runs(config)
    yield from machine_findings(config.host, config.port)
    yield from disk_findings(_data_folder(config), config)
    if config.kv_disk_dir is not None:
        yield kv_disk_finding(config.kv_disk_dir.expanduser())
    if model is not None:
        # Late: it needs an extra, and a doctor should be able to say so.
        from jetflock.doctor.model_checks import model_findings

        yield from model_findings(model)
    if config.nats_url:
        yield from asyncio.run(_all_of_nats(config))
    else:
        text = "no --nats-url, and no jetflock serve runs here: it will start its own"
        yield ok("NATS", text)


async def _all_of_nats(config: ClusterConfig) -> list[Finding]:
    return [finding async for finding in nats_findings(config)]


PROGRAM = Program(name="jetflock doctor", summary=_SUMMARY, main=main)

if __name__ == "__main__":
    PROGRAM.run()
