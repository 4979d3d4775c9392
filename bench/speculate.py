"""What --speculate gains where text is copied, and costs elsewhere.

    python -m bench.speculate FOLDER
    python -m bench.speculate FOLDER --workload talk --draft-model DRAFT --temperature 0.7
    python -m bench.speculate FOLDER --workload talk --mtp COPY    # of the demo model, with a head

Engines without it and with each way of guessing take turns in one process, on the same prompts.
Prints decoding speeds, their ratio (median, and the least and largest of the rounds), the share of
the guesses that were right, and the tokens of a request's step. The tokens must be the same; the
program fails when they are not. `--clock cpu` counts processor time, which others do not change.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import cyclopts

from bench.copying_checkpoint import ensure_copying_checkpoint
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.loading.engine_loader import EngineLoader
from worker.engine_link.engine_config import EngineConfig, SpeculateName
from worker.engine_link.engine_messages import (
    AddRequest,
    EngineCommand,
    EngineEvent,
    FlushCache,
    RunOptions,
    StepOutput,
)

DEMO = Path(__file__).parents[1] / "deploy/demo_model/checkpoint"
TEXT_LEN = 160
TALK_SEED, MAX_TALK_LEN = 50_000, 300
Clock = Literal["wall", "cpu"]
CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
NUM_STREAMS = (1, 8)
WISHES = (
    "Tell me a story about a fox.", "Tell me a story about a dragon.", "Count from 1 to 20.",
    "Name three colours.", "Repeat after me: the owl sat on the stone", "What is 7 plus 5?",
    "Tell me a story about a girl named Mia.", "Who are you?",
)  # fmt: skip


class StepLog:
    """An `EngineChannel` that gives some commands at once, and keeps what the steps made."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.commands: list[EngineCommand] = []
        self.steps: list[tuple[float, StepOutput]] = []

    def poll(self, timeout_s: float) -> list[EngineCommand]:
        commands, self.commands = self.commands, []
        return commands

    def send(self, event: EngineEvent) -> None:
        if isinstance(event, StepOutput):
            self.steps.append((self._clock(), event))


class Decoding(NamedTuple):
    """One turn: the tokens of all requests, and how fast they came once prompts were computed."""

    tokens: dict[int, list[int]]
    tokens_per_s: float
    num_drafted: int
    num_accepted: int
    num_request_steps: int  # steps that gave a request tokens, each counted for each request


class Guessing(NamedTuple):
    """One way."""

    speculate: SpeculateName = "off"
    draft_model: str | None = None
    model_path: Path | None = None  # None: the workload's; else a copy of it with an MTP head


class BenchEngine:
    """One engine in this process."""

    def __init__(
        self, model_path: Path, way: Guessing, temperature: float, clock: Callable[[], float]
    ) -> None:
        config = EngineConfig(
            model_path=str(way.model_path or model_path),
            speculate=way.speculate,
            draft_model=way.draft_model,
            num_kv_tokens=8192,
            max_step_s=10.0,
            target_itl_s=10.0,
        )
        self._temperature = temperature
        self._log = StepLog(clock)
        self._loop = EngineLoader(config, self._log).load()
        self._num_runs = 0

    def run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Decoding:
        first_id = self._num_runs
        self._num_runs += len(prompts)
        sampling = SamplingParams(max_tokens=max_tokens, seed=0, temperature=self._temperature)
        self._log.steps.clear()
        self._log.commands = [FlushCache()]
        self._log.commands += [
            AddRequest(
                run_id=first_id + idx,
                prompt_ids=pack_token_ids(prompt),
                options=RunOptions(sampling=sampling),
            )
            for idx, prompt in enumerate(prompts)
        ]
        drafted, accepted = self._num_guesses()
        self._loop.run(until_idle=True)
        now_drafted, now_accepted = self._num_guesses()
        tokens: dict[int, list[int]] = {idx: [] for idx in range(len(prompts))}
        for _, step in self._log.steps:
            for output in step.outputs:
                tokens[output.run_id - first_id] += output.token_ids
        return Decoding(
            tokens=tokens,
            tokens_per_s=self._speed(),
            num_drafted=now_drafted - drafted,
            num_accepted=now_accepted - accepted,
            num_request_steps=sum(
                bool(output.token_ids) for _, step in self._log.steps for output in step.outputs
            ),
        )

    def _num_guesses(self) -> tuple[int, int]:
        load = self._loop._engine.report().load
        return load.num_drafted, load.num_accepted

    def _speed(self) -> float:
        """Of the steps after the last prompt token."""
        is_decoding = [step.load.num_waiting_tokens == 0 for _, step in self._log.steps]
        first = len(is_decoding) - is_decoding[::-1].index(False) if False in is_decoding else 0
        begin_s = self._log.steps[first][0]
        later = self._log.steps[first + 1 :]
        num_tokens = sum(len(output.token_ids) for _, step in later for output in step.outputs)
        return num_tokens / (later[-1][0] - begin_s)


@dataclass(frozen=True)
class Workload:
    """A model, and prompts for it."""

    name: str
    model_path: Path
    prompts: Callable[[int, int], list[list[int]]]  # number of them, seed


def copying_prompts(num_prompts: int, seed: int) -> list[list[int]]:
    """A text in which no token comes twice, and its beginning once more."""
    source = random.Random(seed)
    prompts = []
    for _ in range(num_prompts):
        text = source.sample(range(300, 49_000), TEXT_LEN)
        prompts.append([0, *text, 299, *text[:4]])
    return prompts


def chat_prompts(num_prompts: int, seed: int) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    processor_ids = [WISHES[(seed + idx) % len(WISHES)] for idx in range(num_prompts)]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": wish}], add_generation_prompt=True
        )["input_ids"]
        for wish in processor_ids
    ]


def talk_prompts(num_prompts: int, seed: int) -> list[list[int]]:
    """Of conversations as the demo model's, drawn with seeds of their own."""
    from transformers import AutoTokenizer

    from deploy.demo_model.corpus import conversations

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    chats = (turns for turns in conversations(TALK_SEED + seed) if turns[0].role != "text")
    return [
        tokenizer.apply_chat_template(
            [{"role": turn.role, "content": turn.text} for turn in turns[:-1]],
            add_generation_prompt=True,
        )["input_ids"][-MAX_TALK_LEN:]
        for turns in islice(chats, num_prompts)
    ]


def measure(
    workload: Workload, ways: dict[str, Guessing], num_rounds: int, temperature: float, clock: Clock
) -> None:
    engines = {
        name: BenchEngine(workload.model_path, way, temperature, CLOCKS[clock])
        for name, way in ways.items()
    }
    for num_streams in NUM_STREAMS:
        turns: dict[str, list[Decoding]] = {name: [] for name in engines}
        for seed in range(num_rounds + 1):  # the first one warms up
            prompts = workload.prompts(num_streams, seed)
            order = list(engines) if seed % 2 else list(engines)[::-1]
            for name in order:
                turns[name].append(engines[name].run(prompts, TEXT_LEN - 4))
                assert turns[name][-1].tokens == turns[order[0]][-1].tokens, "other tokens"
        for name in list(ways)[1:]:
            print(
                f"{workload.name:14} {name:8} {num_streams:7} {row(turns['off'], turns[name])}",
                flush=True,
            )


def row(plain: list[Decoding], guessing: list[Decoding]) -> str:
    """Of the turns of two engines on the same prompts, the first ones left out."""
    off, on = plain[1:], guessing[1:]
    ratios = sorted(b.tokens_per_s / a.tokens_per_s for a, b in zip(off, on, strict=True))
    num_drafted = sum(turn.num_drafted for turn in on)
    num_accepted = sum(turn.num_accepted for turn in on)
    num_tokens = sum(len(told) for turn in on for told in turn.tokens.values())
    return (
        f"{statistics.median(turn.tokens_per_s for turn in off):9.0f}"
        f" {statistics.median(turn.tokens_per_s for turn in on):9.0f}"
        f" {statistics.median(ratios):6.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        f" {num_accepted}/{num_drafted} = {num_accepted / max(1, num_drafted):.2f}"
        f" {num_tokens / sum(turn.num_request_steps for turn in on):6.2f}"
    )


WORKLOADS: dict[str, Callable[[int, int], list[list[int]]]] = {
    "copy": copying_prompts,  # 135 million parameters; the others are the demo model's
    "chat": chat_prompts,
    "talk": talk_prompts,
}


def main(
    folder: Annotated[Path, cyclopts.Parameter(help="Where the copying model is kept.")],
    num_rounds: int = 4,
    workload: Literal["all", "copy", "chat", "talk"] = "all",
    draft_model: str | None = None,
    mtp: Path | None = None,
    temperature: float = 0.0,
    clock: Clock = "wall",
) -> None:
    """Take turns, print a row for each number of streams."""
    print(
        "workload       guesses  streams off tok/s on tok/s  ratio               right guesses"
        "  tokens a step"
    )
    ways = {"off": Guessing(), "ngram": Guessing("ngram"), "suffix": Guessing("suffix")}
    if draft_model is not None or mtp is not None:
        ways = {"off": Guessing()}
    if draft_model is not None:
        ways["draft"] = Guessing(draft_model=draft_model)
    if mtp is not None:
        ways["mtp"] = Guessing("mtp", model_path=mtp)
    if workload in ("all", "copy"):
        ensure_copying_checkpoint(folder)
    for each in WORKLOADS:
        if workload in ("all", each):
            shown = Workload(each, folder if each == "copy" else DEMO, WORKLOADS[each])
            measure(shown, ways, num_rounds, temperature, clock)


if __name__ == "__main__":
    cyclopts.run(main)
