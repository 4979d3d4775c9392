"""The engine in this process: commands in, its steps out, each with the time that it came."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from shared.protocol.sampling import SamplingParams
from shared.token_ids import pack_token_ids
from worker.engine.config import EngineConfig
from worker.engine.engine_loader import EngineLoader
from worker.engine_channel import ChannelClosed
from worker.engine_messages import AddRequest, EngineCommand, EngineEvent, StepOutput


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


class DirectEngine:
    """One model of random weights; runs one set of requests after the other."""

    def __init__(self, model_path: Path, **config: Any) -> None:
        self._channel = _Channel()
        options: dict[str, Any] = {"load_format": "dummy", "max_pinned_share": 0.0} | config
        engine_config = EngineConfig(model_path=str(model_path), **options)
        self._engine = EngineLoader(engine_config, self._channel).load()
        self._num_runs = 0

    def run(
        self, prompt_lens: list[int], output_lens: list[int], **sampling: Any
    ) -> list[tuple[float, StepOutput]]:
        """All at once. The steps, with times since the beginning; end-of-text is ignored."""
        channel = self._channel
        for prompt_len, output_len in zip(prompt_lens, output_lens, strict=True):
            self._num_runs += 1
            rng = random.Random(self._num_runs)
            prompt = pack_token_ids([rng.randrange(500) for _ in range(prompt_len)])
            defaults: dict[str, Any] = {"seed": 0, "temperature": 0.0}
            params = SamplingParams(max_tokens=output_len, ignore_eos=True, **(defaults | sampling))
            channel.commands.append(AddRequest(self._num_runs, prompt, b"", params))
        channel.num_unfinished = len(prompt_lens)
        channel.steps = []
        begin = time.perf_counter()
        with suppress(ChannelClosed):
            self._engine.run()
        return [(at - begin, step) for at, step in channel.steps]
