"""`python -m bench.chaos.role ROLE ...`: a role with a safeguard off, or with a worker's vagaries.

The hooks are named by the variable CHAOS_HOOKS, which no production code reads. Each replaces one
method before the role starts.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import runpy
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from bench.chaos.cases import DIVERGENT_SEED, POISON_SEED
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import AddRequest

HOOKS_VARIABLE = "CHAOS_HOOKS"
LATE_S = 3.0
PACE_S = 0.05


def divergent_runs() -> None:
    """Each worker goes on in its own way, as rounding may make it on real hardware."""
    from worker.engine_child.engine_host import EngineHost

    add = EngineHost.add
    ours = zlib.crc32(f"{os.getpid()}.{os.times().elapsed}".encode())

    def add_divergent(self: EngineHost, run: AddRequest) -> None:
        sampling = run.options.sampling
        if DIVERGENT_SEED <= sampling.seed < POISON_SEED:
            sampling = msgspec.structs.replace(sampling, seed=sampling.seed ^ ours)
        options = msgspec.structs.replace(run.options, sampling=sampling)
        add(self, msgspec.structs.replace(run, options=options))

    EngineHost.add = add_divergent  # type: ignore[method-assign]


def poison_runs() -> None:
    """A request with a certain seed kills the engine that begins it."""
    from worker.engine_child.engine_host import EngineHost

    add = EngineHost.add

    def add_poison(self: EngineHost, run: AddRequest) -> None:
        if run.options.sampling.seed == POISON_SEED and self._engine is not None:
            self._engine.kill()
        add(self, run)

    EngineHost.add = add_poison  # type: ignore[method-assign]


def no_fencing() -> None:
    """Whoever writes an entry is believed: claims and epochs say nothing."""
    from shared.protocol.log_records import OwnershipRecord, TokenEntry
    from shared.token_log.fold import RequestFold

    apply_entry, apply_record = RequestFold.apply_entry, RequestFold.apply_record

    def apply_any(self: RequestFold, worker: str, entry: TokenEntry) -> int:
        forged = msgspec.structs.replace(entry, epoch=self.epoch)
        return apply_entry(self, self.writer, forged)

    def keep_length(self: RequestFold, seq: int, record: OwnershipRecord) -> None:
        apply_record(self, seq, record)
        self.epoch_len = len(self.tokens)

    RequestFold.apply_entry = apply_any  # type: ignore[method-assign]
    RequestFold.apply_record = keep_length  # type: ignore[method-assign]


def late_successors() -> None:
    """A run that goes on with the output of another worker waits, as beside long prefills."""
    from worker.engine_child.engine_host import EngineHost

    add = EngineHost.add

    def add_late(self: EngineHost, run: AddRequest) -> None:
        if run.output_ids:
            asyncio.get_running_loop().call_later(LATE_S, add, self, run)
        else:
            add(self, run)

    EngineHost.add = add_late  # type: ignore[method-assign]


def no_resend() -> None:
    """A frame is sent once."""
    from worker.runs.token_log import PartitionWriter

    PartitionWriter.frames_to_resend = lambda self, now, *, all_of_them: []  # type: ignore[method-assign]


def lossy_log() -> None:
    """The first new frame of a partition after a reconnect is lost, as with a dying connection."""
    from worker.runs.token_log import TokenLog

    publish = TokenLog._publish
    last_numbers: dict[int, int] = {}
    num_reconnects: dict[int, int] = {}

    async def publish_or_not(self: TokenLog, partition: int, frame: Any) -> None:
        is_new = frame.number > last_numbers.get(partition, 0)
        last_numbers[partition] = max(frame.number, last_numbers.get(partition, 0))
        now, before = self._nc.stats["reconnects"], num_reconnects.get(partition, 0)
        if is_new and now != before:
            num_reconnects[partition] = now
        else:
            await publish(self, partition, frame)

    TokenLog._publish = publish_or_not  # type: ignore[method-assign]


def no_replay() -> None:
    """What did not reach a frontend is not asked for."""
    from frontend.streams import replayer

    replayer.due_at = lambda stream: float("inf")


def hooked_engine() -> None:
    """A worker's engine is a role, too: its first argument is the number of its socket."""
    EngineConfig.program = "bench.chaos.role"


def paced_steps() -> None:
    """Streams last while something strikes, and leave the machine to others meanwhile."""
    from worker.engine.loop.command_loop import CommandLoop

    step = CommandLoop._step

    def step_late(self: CommandLoop) -> None:
        time.sleep(PACE_S)
        step(self)

    CommandLoop._step = step_late  # type: ignore[method-assign]


HOOKS: dict[str, dict[str, Callable[[], None]]] = {  # by the roles that have them
    "divergent": {"worker": divergent_runs},
    "poison": {"worker": poison_runs},
    "fencing": {"worker": no_fencing, "detok": no_fencing},
    "late": {"worker": late_successors},
    "lossy": {"worker": lossy_log},
    "resend": {"worker": no_resend},
    "replay": {"frontend": no_replay},
    "paced": {"worker": hooked_engine, "engine": paced_steps},
}


def main() -> None:
    """Put the hooks in, become the role."""
    role = "engine" if sys.argv[1].isdigit() else sys.argv.pop(1)
    for name in os.environ.get(HOOKS_VARIABLE, "").split():
        if role in HOOKS[name]:
            HOOKS[name][role]()
    if role == "engine":
        runpy.run_module("worker.engine", run_name="__main__", alter_sys=True)
    importlib.import_module(f"{role}.__main__").PROGRAM.run()


if __name__ == "__main__":
    main()
