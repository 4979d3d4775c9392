"""A log that 64 streams fill up: engines pause, whatever was accepted ends, and all goes on."""

from __future__ import annotations

import pytest

from shared.errors import LimitReached
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.log_records import End
from shared.protocol.notices import Cancel
from shared.storage.stream_room import ENGINE_MARK
from tests.eventually import Looks, eventually, eventually_async
from tests.stream_limits import set_limit, usage
from tests.worker.io_stage import Stage, make_request
from tests.worker.running_worker import RunningWorker, running_worker
from worker.engine_link.engine_messages import RunOutput

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NUM_STREAMS = 64
TOKENS_A_STEP = 8
LIMIT_BYTES = 4 << 20
STOP = Finish(FinishReason.STOP)


class Filling:
    """Streams that make tokens as long as the engine may."""

    def __init__(self, stage: Stage, worker: RunningWorker) -> None:
        self.stage = stage
        self.worker = worker
        self.rids: list[str] = []
        self.run_ids: dict[str, int] = {}
        self.made: dict[str, list[int]] = {}

    async def start(self) -> None:
        for _ in range(NUM_STREAMS):
            request = make_request()
            await self.stage.submit(request)
            self.rids.append(request.rid)
        for _ in range(NUM_STREAMS):
            await self.worker.engine.next_run()
        await eventually(lambda: all(held.epoch for held in self.worker.held))
        for held in self.worker.held:
            self.run_ids[held.rid] = held.run_id
            self.made[held.rid] = []

    def step(self, finish: Finish | None = None) -> None:
        outputs = []
        for rid, run_id in self.run_ids.items():
            if run_id in self.worker.engine.active:
                token_ids = [len(self.made[rid]) % 29] * TOKENS_A_STEP
                self.made[rid] += token_ids
                outputs.append(RunOutput(run_id, token_ids, finish))
        if finish is not None:
            self.worker.engine.active.clear()
        self.worker.engine.step(outputs)

    async def until_paused(self) -> None:
        async for _ in Looks(60, longest_pause_s=0.02):
            if self.worker.runner.parts.stream_room.is_above(ENGINE_MARK):
                break
            if not self.worker.engine.is_paused:  # for a moment, while frames are on their way
                self.step()
        await eventually(lambda: self.worker.engine.is_paused)

    async def cancel(self, rid: str) -> None:
        """As a frontend does."""
        cluster = self.stage.cluster
        await cluster.ownership.end(rid, End(0, FinishReason.CANCEL, by="frontend"))
        subject = cluster.subjects.control(self.worker.held[0].request.pool)
        await cluster.nc.publish(subject, encode(Cancel(rid)))


@pytest.mark.nightly
async def test_engines_pause_and_go_on_and_all_streams_end_exactly(stage: Stage) -> None:
    js, stream = stage.cluster.js, stage.cluster.subjects.tokens_stream
    await set_limit(js, stream, LIMIT_BYTES)
    async with running_worker(stage, max_running=NUM_STREAMS) as worker:
        filling = Filling(stage, worker)
        await filling.start()
        await filling.until_paused()

        async def is_flushed() -> bool:
            return worker.runner.parts.token_log.is_flushed

        await eventually_async(is_flushed)
        assert ENGINE_MARK <= await usage(js, stream) < 1.0, "room is left for what ends"
        cancelled = filling.rids[:8]
        for rid in cancelled:
            await filling.cancel(rid)
            del filling.run_ids[rid]
        await eventually(lambda: len(worker.held) == NUM_STREAMS - len(cancelled))
        await set_limit(js, stream, 8 * LIMIT_BYTES)
        await eventually(lambda: not worker.engine.is_paused)
        filling.step()
        filling.step(STOP)
        await worker.until_idle()
    for rid in filling.run_ids:
        fold = await stage.fold(rid)
        assert (fold.tokens, fold.finish) == (filling.made[rid], STOP)
    for rid in cancelled:
        fold = await stage.fold(rid)
        assert fold.finish is not None
        assert fold.finish.reason is FinishReason.CANCEL
    await stage.until_queue_is_empty()


async def test_full_results_pause_engines_as_well(stage: Stage) -> None:
    js, subjects = stage.cluster.js, stage.cluster.subjects
    await set_limit(js, subjects.results_stream, 100_000)
    await js.publish(subjects.done("0" * 32), bytes(95_000))
    async with running_worker(stage) as worker:
        await eventually(lambda: worker.engine.is_paused)
        with pytest.raises(LimitReached):
            await js.publish(subjects.done("1" * 32), bytes(10_000))
        await set_limit(js, subjects.results_stream, 1 << 20)
        await eventually(lambda: not worker.engine.is_paused)
