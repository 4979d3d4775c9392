"""The engine of a simulated worker: one token a step for each run, every one of them recorded."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.token_ids import unpack_token_ids
from tests.simulation.process_loop import ProcessLoop
from worker.engine_link.engine_messages import (
    AbortRequest,
    AddRequest,
    EngineCommand,
    EngineEvent,
    EngineLoad,
    EngineReady,
    RunOutput,
    SetPaused,
    StepOutput,
)

POISON_TOKEN = 28  # a prompt that begins with it kills its engine
END_TOKEN = 0
_LETTERS = 14  # ids 1 to 14 are made: few enough for stop strings to come up
_MAX_RUNNING = 4


@dataclass(slots=True)
class TokenRecord:
    """Every token that any engine made, with all that was before it: what invariant I5 asks for.

    A run draws its tokens anew, as hardware does at near ties: two runs of a request soon differ,
    so that a token which was computed from another past than the log's is not in here.
    """

    made: set[tuple[bytes, tuple[int, ...]]] = field(default_factory=set)

    def add(self, prompt: bytes, tokens: list[int]) -> None:
        self.made.add((prompt, tuple(tokens)))

    def holds(self, prompt: bytes, tokens: list[int]) -> bool:
        """Whether each token was made from exactly those before it."""
        return all((prompt, tuple(tokens[: i + 1])) in self.made for i in range(len(tokens)))


@dataclass(slots=True)
class _Run:
    run_id: int
    prompt: bytes
    tokens: list[int]
    max_tokens: int
    rng: random.Random
    num_new: int = 0


class ScriptedEngine:
    """Behind the seam of `EngineHost`. `hang` makes it live on without steps."""

    def __init__(
        self,
        loop: ProcessLoop,
        rng: random.Random,
        record: TokenRecord,
        step_s: float,
        on_poison: Callable[[], None],
        on_event: Callable[[EngineEvent], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._record = record
        self._step_s = step_s
        self._on_poison = on_poison
        self._on_event = on_event
        self._on_exit = on_exit
        self._runs: dict[int, _Run] = {}
        self._num_steps = 0
        self._is_stepping = False
        self._is_paused = False
        self.is_dead = False
        self.is_hung = False

    async def start(self) -> None:
        self._loop.call_later(0.01, self._become_ready)

    def send(self, command: EngineCommand) -> None:
        match command:
            case AddRequest():
                self._runs[command.run_id] = _Run(
                    command.run_id,
                    command.prompt_ids,
                    unpack_token_ids(command.output_ids),
                    command.options.sampling.max_tokens,
                    random.Random(self._rng.getrandbits(64)),
                )
            case AbortRequest(run_id=run_id):
                self._runs.pop(run_id, None)
            case SetPaused(paused=paused):
                self._is_paused = paused
        self._keep_stepping()

    def kill(self) -> None:
        self.is_dead = True

    def die(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self._loop.call_soon(self._on_exit, -9)

    def hang(self) -> None:
        self.is_hung = True

    def _become_ready(self) -> None:
        if not self.is_dead:
            self._on_event(EngineReady(1000, POISON_TOKEN + 1, _MAX_RUNNING, 100_000, 512))

    def _keep_stepping(self) -> None:
        if self._runs and not self._is_stepping and not self._is_paused:
            self._is_stepping = True
            self._loop.call_later(self._step_s, self._step)

    def _step(self) -> None:
        self._is_stepping = False
        if self.is_dead or self.is_hung or self._is_paused:
            return
        if any(run.prompt[0] == POISON_TOKEN for run in self._runs.values()):
            self._on_poison()
            return
        outputs = [self._advance(run) for run in list(self._runs.values())]
        self._num_steps += 1
        num_free = _MAX_RUNNING - len(self._runs)
        load = EngineLoad(len(self._runs), 0, 0, num_free, 100_000, 100_000, 0, 0, 0)
        self._on_event(StepOutput(self._num_steps, outputs, load))
        self._keep_stepping()

    def _advance(self, run: _Run) -> RunOutput:
        new: list[int] = []
        finish = None
        for _ in range(1 if run.rng.random() < 0.8 else 2):  # two: a guess was right
            if len(run.tokens) >= run.max_tokens:
                finish = Finish(FinishReason.LENGTH)
                break
            token = run.rng.randint(1, _LETTERS)
            if run.rng.random() < 0.05:
                token = END_TOKEN
            run.tokens.append(token)
            new.append(token)
            self._record.add(run.prompt, run.tokens)
            if token == END_TOKEN:
                finish = Finish(FinishReason.STOP, matched=END_TOKEN)
                break
            if len(run.tokens) >= run.max_tokens:
                finish = Finish(FinishReason.LENGTH)
                break
        if finish is not None:
            del self._runs[run.run_id]
        return RunOutput(run.run_id, new, finish)
