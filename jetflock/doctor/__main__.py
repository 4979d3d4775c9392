"""`jetflock doctor [MODEL]`: one line a check, and a status."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Annotated

from deploy.local.data_folder import default_data_dir
from jetflock.doctor.disk_checks import disk_findings
from jetflock.doctor.doctor_config import DoctorConfig
from jetflock.doctor.finding import Finding, Verdict, ok
from jetflock.doctor.machine_checks import machine_findings
from jetflock.doctor.nats_checks import nats_findings
from jetflock.doctor.report import print_as_they_come, print_findings_json
from jetflock.local_service import local_nats_urls, nats_url_of
from shared.config import FLAT, ClusterConfig
from shared.program import Program

_SUMMARY = """\
Look for what keeps jetflock from running well: this machine, NATS, and the files of MODEL.

Each line is ok, warn (it runs, with a loss) or fail, with a remedy. Status 1 if one is fail."""
_DEFAULTS = DoctorConfig()


def main(model: str | None = None, /, config: Annotated[DoctorConfig, FLAT] = _DEFAULTS) -> None:
    """MODEL is a folder in Hugging Face format, or a hub id."""
    show = print_findings_json if config.as_json else print_as_they_come
    seen = show(_findings(model, config))
    raise SystemExit(int(any(finding.verdict is Verdict.FAIL for finding in seen)))


def _findings(model: str | None, config: DoctorConfig) -> Iterator[Finding]:
    yield from machine_findings(config.host, config.port)
    folder = (config.data_dir or default_data_dir(config.port)).expanduser().absolute()
    yield from disk_findings(folder, config)
    if model is not None:
        # Late: it needs an extra, and a doctor should be able to say so.
        from jetflock.doctor.model_checks import model_findings

        yield from model_findings(model)
    running = [nats_url_of(folder), *local_nats_urls()]
    url = config.nats_url or next(filter(None, running), "")
    if url:
        yield from asyncio.run(_all_of_nats(dataclasses.replace(config, nats_url=url)))
    else:
        text = "no --nats-url, and no jetflock serve runs here: it will start its own"
        yield ok("NATS", text)


async def _all_of_nats(config: ClusterConfig) -> list[Finding]:
    return [finding async for finding in nats_findings(config)]


PROGRAM = Program(name="jetflock doctor", summary=_SUMMARY, main=main)

if __name__ == "__main__":
    PROGRAM.run()
