"""What a model answers to prompts: the text that its draft learns from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2.exceptions import TemplateError

from shared.errors import ConfigError
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import (
    AddRequest,
    EngineCommand,
    EngineEvent,
    RunOptions,
    StepOutput,
)
from worker.engine_link.train_config import TrainConfig

TEMPERATURES = (0.0, 0.7, 1.0)  # in turns: drafts are to guess at each
REPORT_EVERY = 256  # answers


class Sample(NamedTuple):
    """One prompt and its answer."""

    token_ids: list[int]
    num_prompt_tokens: int


class _Collector:
    """An `EngineChannel` that gives all commands at once, and keeps what comes of them."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.commands: list[EngineCommand] = []
        self.answers: dict[int, list[int]] = {}
        self._report = report
        self._num_ended = 0

    def poll(self, timeout_s: float) -> list[EngineCommand]:
        commands, self.commands = self.commands, []
        return commands

    def send(self, event: EngineEvent) -> None:
        if not isinstance(event, StepOutput):
            return
        for output in event.outputs:
            self.answers.setdefault(output.run_id, []).extend(output.token_ids)
            if output.finish is not None:
                self._num_ended += 1
                if self._num_ended % REPORT_EVERY == 0:
                    self._report(f"{self._num_ended} answers")


def read_prompts(path: Path, model_path: Path, max_prompts: int) -> list[list[int]]:
    """Token ids of each. Raises ConfigError for a line that has none."""
    from transformers import AutoTokenizer  # late: it takes seconds

    tokenizer: Any = AutoTokenizer.from_pretrained(model_path)
    prompts: list[list[int]] = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else f"it is no UTF-8: {exc}"
        raise ConfigError(f"prompts={path} cannot be read: {why}") from exc
    for number, line in enumerate(lines[:max_prompts], start=1):
        try:
            value = json.loads(line)
            if "messages" in value:
                told = tokenizer.apply_chat_template(
                    value["messages"], add_generation_prompt=True, return_dict=True
                )
                prompts.append(told["input_ids"])
            else:
                prompts.append(tokenizer(value["prompt"])["input_ids"])
        except TemplateError as exc:
            raise ConfigError(
                f"prompts={path}: line {number}: the model's chat template refuses its messages: "
                f"{exc}"
            ) from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise ConfigError(
                f"prompts={path}: line {number} must be an object with messages or prompt, not "
                f"{line[:80]!r}"
            ) from exc
    if not prompts:
        raise ConfigError(f"prompts={path} has none")
    return prompts


def answered(
    config: TrainConfig, prompts: Sequence[list[int]], report: Callable[[str], None]
) -> list[Sample]:
    """Has the prompts answered by the engine itself, all of them at once."""
    channel = _Collector(report)
    engine = EngineConfig(
        model_path=config.model_path, num_threads=config.num_threads, max_step_s=10.0
    )
    loop = EngineLoader(engine, channel).load()
    for run_id, prompt in enumerate(prompts):
        sampling = SamplingParams(
            max_tokens=config.max_answer_len,
            temperature=TEMPERATURES[run_id % len(TEMPERATURES)],
            seed=config.seed + run_id,
        )
        options = RunOptions(sampling=sampling)
        channel.commands.append(
            AddRequest(run_id=run_id, prompt_ids=pack_token_ids(prompt), options=options)
        )
    loop.run(until_idle=True)
    return [
        Sample(prompt + channel.answers[run_id], len(prompt))
        for run_id, prompt in enumerate(prompts)
        if channel.answers.get(run_id)
    ]
