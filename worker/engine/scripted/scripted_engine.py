"""An engine without a model: tokens from a hash at a steady pace, over the same messages.

It shows what the serving plane adds, and makes its faults testable: a token depends on prompt,
seed and position alone, so that a run which another worker resumes goes on identically.
"""

from __future__ import annotations

import heapq
import math
import os
import signal
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shared.checkpoint.model_files import ModelFiles
from shared.errors import ConfigError
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import unpack_token_ids
from worker.engine.loop.command_loop import CommandLoop
from worker.engine.request.step_limits import StepLimits
from worker.engine.request.stop_check import StopCheck
from worker.engine.scripted.scripted_logprobs import scripted_logprobs, scripted_prompt_logprobs
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.engine_messages import (
    AddRequest,
    EngineLoad,
    EngineLoading,
    EngineReady,
    RunBegin,
    RunOptions,
    RunOutput,
    RunShare,
    StepOutput,
)
from worker.engine_link.scripted_config import ScriptedConfig

CHUNK_S = 1.0  # a long prefill takes several steps
DEFAULT_CONTEXT_LEN = 32768
DEFAULT_KV_TOKENS = 1 << 22

_MASK = (1 << 64) - 1


@dataclass(slots=True)
class _Run:
    run_id: int
    num_prompt_tokens: int
    output_ids: list[int]
    sampling: SamplingParams
    stop_token_ids: frozenset[int]
    hash_key: int  # of prompt and seed
    prompt_logprobs: bytes = b""  # until they are sent
    kills_pid: int = 0  # the process that its prefill kills; 0: none
    hang_s: float = 0.0  # for which its prefill stops the engine
    added_at: float = 0.0  # seconds of the clock, as the next
    ready_at: float = 0.0  # end of its prefill, known at admission
    is_prefilled: bool = False  # which its first token shows

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.output_ids)


@dataclass(order=True, slots=True)
class _Waiting:
    priority: int
    arrival: int
    run: _Run = field(compare=False)


class ScriptedEngine:
    """Admits up to `max_running` runs; one step gives one token to each that is past its prefill.

    Steps follow a clock of absolute times: a step that comes late does not move the next one. The
    clock starts anew, at the end of a prefill, whenever nothing is decoding.
    """

    def __init__(self, config: ScriptedConfig, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._prefill_s = config.scripted_prefill_s
        self._token_s = config.scripted_token_s
        self._token_low = config.scripted_token_low
        token_high = config.scripted_token_high or config.scripted_vocab_size
        if token_high <= self._token_low:
            raise ConfigError(f"no token id lies in [{self._token_low}, {token_high})")
        self._num_token_ids = token_high - self._token_low
        self._poison: dict[int, int] = {}  # token of a prompt -> process that it kills
        if config.scripted_poison_token is not None:
            self._poison[config.scripted_poison_token] = os.getpid()
        if config.scripted_worker_poison_token is not None:
            self._poison[config.scripted_worker_poison_token] = os.getppid()
        self._salt = 0
        if config.scripted_by_weights:
            self._salt = int(ModelFiles.read(Path(config.model_path)).revision, 16)
        self._adapters: set[str] = set()
        self._hang_token = config.scripted_hang_token
        self._hang_s = config.scripted_hang_s
        self._num_kv_tokens = config.num_kv_tokens or DEFAULT_KV_TOKENS
        limits = StepLimits.of(config, on_gpu=False)
        self.ready = EngineReady(
            max_context_len=config.max_context_len or DEFAULT_CONTEXT_LEN,
            vocab_size=config.scripted_vocab_size,
            max_running=limits.max_running,
            num_kv_tokens=self._num_kv_tokens,
            max_step_tokens=limits.max_step_tokens,
            can_release_cache=True,
            one_token_step_s=self._token_s,
        )
        self._stop_check = StopCheck((), self.ready.max_context_len)
        self._runs: dict[int, _Run] = {}  # admitted, in order of admission
        self._waiting: list[_Waiting] = []  # heap
        self._finished: list[RunOutput] = []  # ended without a step: refused, or complete at start
        self._begun: list[RunBegin] = []  # not sent yet
        self._num_arrivals = 0
        self._num_used_tokens = 0  # of the admitted runs
        self._num_steps = 0
        self._step_at: float | None = None  # None while no run is admitted
        self._reported_at = (
            0.0  # the last step with tokens, or when work came: seconds of the clock
        )
        self._is_paused = False

    def step(self) -> StepOutput:
        """One token for each decoding run."""
        assert self._step_at is not None
        now = self._step_at
        decoding = [run for run in self._runs.values() if run.ready_at <= now]
        shares = [RunShare(run.run_id, run.num_tokens) for run in decoding if not run.is_prefilled]
        outputs = [self._advance(run) for run in decoding]
        self._num_steps += 1
        self.admit()
        self._step_at = self._next_step_at(now, is_decoding=bool(outputs))
        return self._output(outputs, shares)

    def report(self) -> StepOutput:
        return self._output([], [])

    @property
    def is_due(self) -> bool:
        return self.wait_s <= 0

    @property
    def wait_s(self) -> float:
        if self._step_at is None or self._is_paused:
            return math.inf
        return self._step_at - self._clock()

    @property
    def has_news(self) -> bool:
        return bool(self._finished)

    @property
    def is_idle(self) -> bool:
        return not self._runs

    def check_integrity(self) -> None:
        """Raises RuntimeError when tokens of runs that are gone count."""
        if self._num_used_tokens:
            raise RuntimeError(f"{self._num_used_tokens} tokens lost")

    def flush_cache(self) -> None:
        """It has none."""

    def release_cache(self) -> None:
        """It has none."""

    def load_adapter(self, adapter: str, path: Path) -> None:
        """Its name makes other tokens, whatever is there."""
        self._adapters.add(adapter)

    def drop_adapter(self, adapter: str) -> None:
        self._adapters.discard(adapter)

    def add(self, command: AddRequest) -> None:
        options, sampling = command.options, command.options.sampling
        run = _Run(
            run_id=command.run_id,
            num_prompt_tokens=len(command.prompt_ids) // 4,
            output_ids=unpack_token_ids(command.output_ids),
            sampling=sampling,
            stop_token_ids=self._stop_check.stop_token_ids(sampling),
            hash_key=self._salt
            ^ zlib.crc32(options.adapter.encode())
            ^ (sampling.seed ^ (zlib.crc32(command.prompt_ids) << 20)) & _MASK,
        )
        finish = _refused_feature(options) or self._refusal(run, options.adapter)
        if self._poison:
            for token_id in unpack_token_ids(command.prompt_ids):
                run.kills_pid = run.kills_pid or self._poison.get(token_id, 0)
        if self._hang_token is not None and self._hang_token in unpack_token_ids(
            command.prompt_ids
        ):
            run.hang_s = self._hang_s
        if finish is None and not run.output_ids:
            prompt_ids = unpack_token_ids(command.prompt_ids)
            run.prompt_logprobs = scripted_prompt_logprobs(
                prompt_ids, sampling.prompt_logprobs, sampling.logprob_ids
            )
        finish = finish or self._finish_of(run)
        if finish is not None:
            output = RunOutput(run.run_id, [], finish, prompt_logprobs=run.prompt_logprobs)
            self._finished.append(output)
            return
        run.added_at = self._clock()
        heapq.heappush(self._waiting, _Waiting(options.priority, self._num_arrivals, run))
        self._num_arrivals += 1
        self.admit()

    def _refusal(self, run: _Run, adapter: str) -> Finish | None:
        limit = min(self.ready.max_context_len, self._num_kv_tokens)
        if adapter and adapter not in self._adapters:
            message = f"the LoRA adapter {adapter} is not loaded"
            return Finish(FinishReason.ERROR, message=message)
        if run.num_prompt_tokens == 0:
            return Finish(FinishReason.ERROR, message="the prompt is empty")
        if run.num_prompt_tokens > limit:
            message = f"prompt has {run.num_prompt_tokens} tokens, the engine takes {limit}"
            return Finish(FinishReason.ERROR, message=message)
        return None

    def _finish_of(self, run: _Run) -> Finish | None:
        return self._stop_check.finish_of(
            run.sampling,
            run.stop_token_ids,
            run.num_prompt_tokens,
            len(run.output_ids),
            run.output_ids[-1] if run.output_ids else -1,
        )

    def abort(self, run_id: int) -> None:
        run = self._runs.pop(run_id, None)
        if run is not None:
            self._num_used_tokens -= run.num_tokens
            self.admit()
            if not self._runs:
                self._step_at = None
        elif any(waiting.run.run_id == run_id for waiting in self._waiting):
            self._waiting = [entry for entry in self._waiting if entry.run.run_id != run_id]
            heapq.heapify(self._waiting)

    def set_paused(self, paused: bool) -> None:
        """Steps missed in a pause are not made up for."""
        self._is_paused = paused
        if not paused and self._step_at is not None:
            self._step_at = max(self._step_at, self._clock())

    def admit(self) -> None:
        """Whoever waits, as far as there are slots."""
        while self._waiting and len(self._runs) < self.ready.max_running:
            run = heapq.heappop(self._waiting).run
            now = self._clock()
            run.ready_at = now + self._prefill_s
            self._begun.append(RunBegin(run.run_id, now - run.added_at))
            self._runs[run.run_id] = run
            self._num_used_tokens += run.num_tokens
            if self._step_at is None:
                self._reported_at = now
                self._step_at = min(run.ready_at, now + CHUNK_S)

    def _advance(self, run: _Run) -> RunOutput:
        if run.kills_pid:
            os.kill(run.kills_pid, signal.SIGKILL)
        if run.hang_s:
            time.sleep(run.hang_s)
            run.hang_s = 0.0
        token_id = self._token_at(run.hash_key, run.num_tokens)
        run.output_ids.append(token_id)
        run.is_prefilled = True
        self._num_used_tokens += 1
        finish = self._finish_of(run)
        if finish is not None:
            del self._runs[run.run_id]
            self._num_used_tokens -= run.num_tokens
        asked = run.sampling
        logprobs = scripted_logprobs(token_id, run.num_tokens, asked.logprobs, asked.logprob_ids)
        prompt_logprobs, run.prompt_logprobs = run.prompt_logprobs, b""
        return RunOutput(run.run_id, [token_id], finish, logprobs, prompt_logprobs)

    def _token_at(self, hash_key: int, position: int) -> int:
        mixed = (hash_key + position * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        return self._token_low + ((mixed ^ (mixed >> 31)) >> 8) % self._num_token_ids

    def _next_step_at(self, now: float, *, is_decoding: bool) -> float | None:
        if not self._runs:
            return None
        if is_decoding and any(run.ready_at <= now for run in self._runs.values()):
            return now + self._token_s if self._token_s else self._clock()
        return min(self._clock() + CHUNK_S, *(run.ready_at for run in self._runs.values()))

    def _output(self, outputs: list[RunOutput], shares: list[RunShare]) -> StepOutput:
        finished, self._finished = self._finished, []
        begun, self._begun = self._begun, []
        num_tokens = len(outputs) - len(shares) + sum(share.num_tokens for share in shares)
        step = StepOutput(self._num_steps, finished + outputs, self._load(), num_tokens, begun)
        if not outputs:
            return step
        now, since = self._clock(), self._reported_at
        self._reported_at = now
        return msgspec.structs.replace(step, token_s=(now - since) / num_tokens, shares=shares)

    def _load(self) -> EngineLoad:
        return EngineLoad(
            num_running=len(self._runs),
            num_waiting=len(self._waiting),
            num_waiting_tokens=sum(entry.run.num_tokens for entry in self._waiting),
            num_free_slots=self.ready.max_running - len(self._runs),
            num_free_tokens=max(0, self._num_kv_tokens - self._num_used_tokens),
            num_kv_tokens=self._num_kv_tokens,
            num_preemptions=0,
            num_prefix_queries=0,
            num_prefix_hits=0,
        )


def scripted_loop(
    config: ScriptedConfig, channel: EngineChannel, clock: Callable[[], float] = time.monotonic
) -> CommandLoop:
    """Raises ConfigError."""
    config.check()
    engine = ScriptedEngine(config, clock)
    channel.send(EngineLoading("scripted", 1.0))
    return CommandLoop(channel, engine, engine.ready)


def _refused_feature(options: RunOptions) -> Finish | None:
    if options.pooling is not None:
        wanted = "embeddings"
    elif options.sampling.grammar is not None:
        wanted = "structured output"
    elif options.sampling.beam is not None:
        wanted = "beam search"
    elif options.sampling.logits_processors:
        wanted = "logits processors"
    else:
        return None
    return Finish(FinishReason.ERROR, message=f"the scripted engine makes no {wanted}")
