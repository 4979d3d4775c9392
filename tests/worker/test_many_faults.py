"""Several workers, many requests, and faults at random: the invariants of docs/protocol.md hold."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from shared.errors import BrokerError
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import Claim
from shared.protocol.prefix_chain import BLOCK_TOKENS
from shared.protocol.sampling import SamplingParams
from shared.protocol.token_ids import pack_token_ids
from shared.token_log.fold import RequestFold
from tests.eventually import eventually, eventually_async
from tests.nats_server import NatsServer
from tests.worker.io_stage import Stage, make_request, open_stage
from tests.worker.running_worker import FakeEngine, RunningWorker, output_of, running_worker
from worker.engine_link.engine_messages import RunOutput

pytestmark = pytest.mark.integration

ACK_WAIT_S = 0.8
OUTPUT_LEN = 40
STEP_S = 0.004
NUM_PREFIXES = 7
# A worker that leaves gives everything back, if the broker answers in this time: it may have been
# restarted a moment ago, on a busy machine.
DRAIN_TIMEOUT_S = 15.0
LENGTH = Finish(FinishReason.LENGTH)


class Fleet:
    """Workers whose engines choose tokens at random, and remember what they chose behind what."""

    def __init__(
        self, stage: Stage, server: NatsServer, stack: AsyncExitStack, rng: random.Random
    ) -> None:
        self.stage = stage
        self.workers: list[RunningWorker] = []
        self.chosen: set[tuple[int, int, int]] = set()  # prompt, hash of the output so far, token
        self._server = server
        self._stack = stack
        self._rng = rng

    async def start_worker(self) -> None:
        worker = await self._stack.enter_async_context(
            running_worker(
                self.stage, max_running=6, is_ready=False, drain_timeout_s=DRAIN_TIMEOUT_S
            )
        )
        self.workers.append(worker)

    async def run_engines(self) -> None:
        """Steps of all engines, until cancelled. A new one becomes ready by itself."""
        outputs: dict[tuple[FakeEngine, int], list[int]] = {}
        ready: set[FakeEngine] = set()
        while True:
            for worker in self.workers:
                engine = worker.engine
                if worker.task.done() or engine.is_dead:
                    continue
                if engine not in ready:
                    ready.add(engine)
                    engine.become_ready()
                self._step(engine, outputs)
            await asyncio.sleep(STEP_S)

    def _step(self, engine: FakeEngine, outputs: dict[tuple[FakeEngine, int], list[int]]) -> None:
        step: list[RunOutput] = []
        for run_id in sorted(engine.active):
            run = engine.runs[run_id]
            output = outputs.setdefault((engine, run_id), output_of(run))
            token = self._rng.randrange(1 << 20)
            self.chosen.add((hash(run.prompt_ids), hash(tuple(output)), token))
            output.append(token)
            is_last = len(output) >= OUTPUT_LEN
            step.append(RunOutput(run_id, [token], LENGTH if is_last else None))
            if is_last:
                engine.active.discard(run_id)
        engine.step(step)

    def have_told_prefixes(self) -> bool:
        return all(worker.runner.parts.prefixes.has_others for worker in self.workers)

    async def fault(self) -> None:
        """Something goes wrong with one worker, with a delivery of it, or with the broker."""
        alive = [worker for worker in self.workers if not worker.task.done()]
        worker = self._rng.choice(alive)
        match self._rng.choice(["kill", "drain", "engine", "nak", "nak", "broker", "resend"]):
            case "kill":
                await worker.kill()
                await self.start_worker()
            case "drain":
                await worker.stop(3 * DRAIN_TIMEOUT_S)
                worker.assert_nothing_held()
                await self.start_worker()
            case "engine":
                if not worker.engine.is_dead:
                    worker.engine.die()
            case "nak":  # as by a zombie, or by somebody who took us for dead
                for held in worker.held[:2]:
                    await self.stage.cluster.nc.publish(held.delivery.ack_subject, b"-NAK")
            case "broker":
                self._server.kill()
                await asyncio.sleep(self._rng.uniform(0, 0.2))
                self._server.start()
            case "resend":  # as after a reconnect: every unconfirmed frame is stored twice
                await worker.worker.on_reconnect()


def assert_each_follows_the_others(fleet: Fleet, prompt_ids: bytes, fold: RequestFold) -> None:
    for idx, token in enumerate(fold.tokens):
        chosen = (hash(prompt_ids), hash(tuple(fold.tokens[:idx])), token)
        assert chosen in fleet.chosen, f"token {idx} was computed from something else"


@pytest.mark.parametrize(
    ("seed", "num_common_tokens"), [(0, 0), (1, 4 * BLOCK_TOKENS), (2, 0), (2, 4 * BLOCK_TOKENS)]
)
async def test_every_request_ends_once_with_tokens_that_follow_each_other(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, seed: int, num_common_tokens: int
) -> None:
    """Requests with common prefixes are offered from worker to worker besides."""
    monkeypatch.setattr("worker.engine_child.engine_host._RESTART_S", 0.05)
    rng = random.Random(seed)
    requests = [
        make_request(
            prompt_ids=pack_token_ids([idx % NUM_PREFIXES] * num_common_tokens + [idx]),
            sampling=SamplingParams(max_tokens=OUTPUT_LEN, seed=1),
        )
        for idx in range(1, 31)
    ]
    async with open_stage(nats_server.url, ACK_WAIT_S) as stage, AsyncExitStack() as stack:
        fleet = Fleet(stage, nats_server, stack, rng)
        for _ in range(3):
            await fleet.start_worker()
        stepping = asyncio.create_task(fleet.run_engines())
        for request in requests[:NUM_PREFIXES]:
            await stage.submit(request)
        if num_common_tokens:
            await eventually(fleet.have_told_prefixes)
        for request in requests[NUM_PREFIXES:]:
            await stage.submit(request)
        for _ in range(12):
            await fleet.fault()
            await asyncio.sleep(rng.uniform(0, 0.08))

        async def is_over() -> bool:
            assert not stepping.done(), stepping.exception()
            try:
                return await stage.num_queued() == 0
            except BrokerError:
                return False

        # Faults cost time: acks that must run out, and on a busy machine some run out besides.
        await eventually_async(is_over, timeout_s=80)
        for request in requests:
            fold = await stage.fold(request.rid)
            assert fold.finish == LENGTH
            assert len(fold.tokens) == OUTPUT_LEN
            assert_each_follows_the_others(fleet, request.prompt_ids, fold)
            records = await stage.records(request.rid)
            assert isinstance(records[0].record, Claim)
        for worker in fleet.workers:
            if not worker.task.done():
                await worker.until_idle()
        stepping.cancel()
        num_offers = sum(worker.count("offers.made") for worker in fleet.workers)
        assert (num_offers > 0) == (num_common_tokens > 0)
