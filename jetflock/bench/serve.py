"""`jetflock bench serve`: what clients of a server see under load."""

# No `from __future__ import annotations` here: cyclopts reads the types of the command.

import asyncio
import contextlib
import datetime
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated

import uvloop

from jetflock.bench.connection_pool import ConnectionPool
from jetflock.bench.endpoint import Endpoint
from jetflock.bench.load_runner import LoadProgress, LoadRunner, StageRun
from jetflock.bench.load_stage import LoadStage
from jetflock.bench.plot import write_plot
from jetflock.bench.prompt_source import PromptSource, find_source
from jetflock.bench.request_sender import RequestSender, warmed_up
from jetflock.bench.result_file import FORMAT, Result, compare, request_figures
from jetflock.bench.serve_config import BenchServeConfig
from jetflock.bench.served_model import ServedModel
from jetflock.bench.stage_report import report
from jetflock.bench.stage_summary import StageSummary, summarize
from jetflock.bench.token_counter import find_counter
from shared.config import FLAT
from shared.errors import JetflockError

_DEFAULTS = BenchServeConfig()


class RequestsFailed(JetflockError):
    """More than --max-error-rate allows; all figures are printed."""

    exit_status = 1


@dataclass(frozen=True)
class _Outcome:
    """What came of the stages that were run, the last one perhaps broken off."""

    model: str
    prompts: str
    runs: list[StageRun]
    was_interrupted: bool


def serve(*, config: Annotated[BenchServeConfig, FLAT] = _DEFAULTS) -> None:
    """Put load on an OpenAI-compatible server, and tell the latencies its clients see.

    A closed loop of --concurrency clients, or an open one at --request-rate. Status 1 when requests
    failed.
    """
    config.check()
    earlier = None if config.compare is None else Result.read(config.compare)
    slo = config.slo()
    outcome = uvloop.run(_measure(config))
    if not any(run.records for run in outcome.runs):
        raise SystemExit(130)
    stages = [summarize(run, slo) for run in outcome.runs]
    sys.stdout.write(report(stages))
    result = _result(config, outcome, stages)
    if earlier is not None:
        sys.stdout.write(compare(earlier, result))
    if config.json is not None:
        result.write(config.json)
    if config.plot is not None:
        heading = f"{outcome.model}: {config.endpoint} at {config.url}"
        write_plot(config.plot, heading, outcome.prompts, outcome.runs, stages)
    if outcome.was_interrupted:
        raise SystemExit(130)
    _judge(stages, config.max_error_rate)


def _judge(stages: Sequence[StageSummary], max_error_rate: float) -> None:
    """Raises RequestsFailed."""
    worst = max(stages, key=lambda stage: stage.error_rate)
    if worst.error_rate > max_error_rate:
        raise RequestsFailed(
            f"{worst.num_failed} of {worst.num_ok + worst.num_failed} requests failed "
            f"({worst.label}); --max-error-rate allows {max_error_rate:.1%}"
        )


def _result(config: BenchServeConfig, outcome: _Outcome, stages: Sequence[StageSummary]) -> Result:
    return Result(
        format=FORMAT,
        made_by=f"jetflock {version('jetflock')}",
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        url=config.url,
        model=outcome.model,
        endpoint=config.endpoint,
        prompts=outcome.prompts,
        settings=config.load_settings(),
        stages=list(stages),
        requests=request_figures(outcome.runs) if config.json_requests else None,
    )


async def _measure(config: BenchServeConfig) -> _Outcome:
    """Ctrl-C ends the running stage, and what is there by then is reported."""
    target, stages, extra_fields = config.target(), config.stages(), config.extra_fields()
    async with ConnectionPool(target) as pool:
        model = await ServedModel.find(pool, target, config.model)
        counter = await find_counter(
            pool, target, model.name, config.tokenizer, is_chat=config.endpoint == "chat"
        )
        source = await find_source(config, counter, model)
        endpoint = Endpoint(config.endpoint, model.name, extra_fields=extra_fields)
        sender = RequestSender(pool, target, endpoint, config.timeout_s, config.max_retries)
        sender = await warmed_up(sender, source.draw(f"warm-up {config.seed}"), config.warmup)
        sys.stderr.write(f"{target.host}:{target.port}, model {model.name}: {source.description}\n")
        runs: list[StageRun] = []
        running = asyncio.ensure_future(_run_stages(sender, stages, source, config.seed, runs))
        with _cancelled_by_ctrl_c(running):
            was_interrupted = not await _is_whole(running)
        return _Outcome(model.name, source.description, runs, was_interrupted)


async def _run_stages(
    sender: RequestSender,
    stages: Sequence[LoadStage],
    source: PromptSource,
    seed: int,
    runs: list[StageRun],
) -> None:
    runner, progress = LoadRunner(sender, seed), LoadProgress()
    prompts = source.draw(f"load {seed}")
    for stage in stages:
        run = StageRun(stage, time.perf_counter())
        runs.append(run)
        async with progress.watching(run):
            await runner.run(run, prompts)


@contextlib.contextmanager
def _cancelled_by_ctrl_c(task: asyncio.Future[None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _is_whole(task: asyncio.Future[None]) -> bool:
    """Wait for it; False when it was cancelled."""
    await asyncio.wait([task])
    if task.cancelled():
        return False
    task.result()
    return True
