"""The engine in this process: commands in, its steps out, each with the time that it came."""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from bench.gpu.host_times import HostTimes
from bench.gpu.timed_device import TimedDevice
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine.loop.step_budget import StepBudget, StepTargets
from worker.engine_link.engine_channel import ChannelClosed
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import (
    AddRequest,
    EngineCommand,
    EngineEvent,
    RunOptions,
    StepOutput,
)

MAX_STEP_S = 60.0  # no step is made smaller for its length
NUM_TOKEN_IDS = 500  # of prompts: every shape has as many


class _Channel:
    """An `EngineChannel` without a socket. Closed when all that was asked has come."""

    def __init__(self) -> None:
        self.commands: list[EngineCommand] = []
        self.num_unfinished = 0
        self.steps: list[tuple[float, StepOutput]] = []

    def poll(self, timeout_s: float) -> list[EngineCommand]:
        if not self.num_unfinished and not self.commands:
            raise ChannelClosed("all is done")
        commands, self.commands = self.commands, []
        return commands

    def send(self, event: EngineEvent) -> None:
        if isinstance(event, StepOutput):
            self.steps.append((time.perf_counter(), event))
            self.num_unfinished -= sum(output.finish is not None for output in event.outputs)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a set of requests that were given at once."""

    steps: list[tuple[float, StepOutput]]  # with seconds since the beginning

    @property
    def elapsed_s(self) -> float:
        return self.steps[-1][0]

    @property
    def tokens(self) -> list[list[int]]:
        """In the order of the requests."""
        found: dict[int, list[int]] = {}
        for _, step in self.steps:
            for output in step.outputs:
                found.setdefault(output.run_id, []).extend(output.token_ids)
        return [found[run_id] for run_id in sorted(found)]

    @property
    def first_token_s(self) -> list[float]:
        """When each request's first token came."""
        first: dict[int, float] = {}
        for at_s, step in self.steps:
            for output in step.outputs:
                first.setdefault(output.run_id, at_s)
        return list(first.values())

    def step_s(self, num_rows: int) -> float:
        """Median time from a step in which so many requests got a token to the next such step.

        Raises ValueError when there are none.
        """
        times = [at_s for at_s, step in self.steps if len(step.outputs) == num_rows]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        pauses = pauses[len(pauses) // 4 :]
        if not pauses:
            most = max(len(step.outputs) for _, step in self.steps)
            raise ValueError(f"{num_rows} requests were given, {most} ran at once")
        return statistics.median(pauses)


class DirectEngine:
    """One model of random weights; runs one set of requests after the other."""

    def __init__(self, model_path: Path, device: GpuDevice, **config: Any) -> None:
        self._channel = _Channel()
        options: dict[str, Any] = {
            "device": "cuda",
            "load_format": "dummy",
            "max_pinned_share": 0.0,
            "max_step_s": MAX_STEP_S,
            "target_itl_s": MAX_STEP_S,
        } | config
        engine_config = EngineConfig(model_path=str(model_path), **options)
        timed = TimedDevice(device)
        with capture_logs() as logs:
            self._loop: Any = EngineLoader(engine_config, self._channel, gpu=timed).load()
        self._engine = self._loop._engine
        chosen = [each for each in logs if each["event"] == "attention_kernel"]
        # Which attention kernels the engine has chosen: of decode, then of prefill.
        self.kernels = "/".join(each["kernel"] for each in chosen) or options["attention_backend"]
        for each in chosen:
            print(each, file=sys.stderr)
        self.host = HostTimes(self._engine, timed)
        self._num_runs = 0

    def set_overlap(self, has_overlap: bool) -> None:
        self._engine._steps._depth = int(has_overlap)

    def set_step_tokens(self, max_step_tokens: int) -> None:
        """No more than it was made for."""
        max_running = self._loop._ready.max_running
        self._engine._budget = StepBudget(
            max_step_tokens, max_running, StepTargets(MAX_STEP_S, MAX_STEP_S, MAX_STEP_S)
        )

    def run(
        self, prompts: Sequence[Sequence[int]], output_lens: Sequence[int], **sampling: Any
    ) -> Run:
        """All at once; end-of-text is ignored."""
        channel = self._channel
        for prompt, output_len in zip(prompts, output_lens, strict=True):
            self._num_runs += 1
            defaults: dict[str, Any] = {"seed": 0, "temperature": 0.0}
            params = SamplingParams(max_tokens=output_len, ignore_eos=True, **(defaults | sampling))
            channel.commands.append(
                AddRequest(
                    run_id=self._num_runs,
                    prompt_ids=pack_token_ids(prompt),
                    options=RunOptions(sampling=params),
                )
            )
        channel.num_unfinished = len(prompts)
        channel.steps = []
        self.host.clear()
        begin = time.perf_counter()
        with suppress(ChannelClosed):
            self._loop.run()
        return Run([(at - begin, step) for at, step in channel.steps])


def random_prompts(lens: Sequence[int], seed: int) -> list[list[int]]:
    """The same for the same seed; the first ones do not depend on how many follow."""
    rng = random.Random(seed)
    return [[rng.randrange(NUM_TOKEN_IDS) for _ in range(length)] for length in lens]
