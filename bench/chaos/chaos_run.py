"""One run of the suite: records the undisturbed answers, then disturbs them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
import time
from collections.abc import Callable, Sequence

from bench.chaos.bill_check import check_bills
from bench.chaos.cases import Case
from bench.chaos.checker import check, check_log, check_same
from bench.chaos.client import ClientRun
from bench.chaos.fault_class import FaultClass, FaultFailed
from bench.chaos.faults import FAULTS
from bench.chaos.field import Field
from bench.chaos.flock import Flock
from bench.chaos.ledger import DAMAGING, Ledger, RunInfo
from bench.chaos.left_behind import say_left_behind
from bench.chaos.service_move import ServiceMove
from bench.chaos.suite_plan import SuitePlan
from bench.chaos.transcript import Transcript
from bench.chaos.violation import Violation, ViolationKind
from detok.full_fold import fold_from_log
from shared.errors import BrokerError

_RECORD_CONCURRENCY = 16
_DRAIN_TIMEOUT_S = 30.0
_RECOVERED_TIMEOUT_S = 30.0
_MIXED_WITHIN_S = 2.0

Say = Callable[[str], None]


class ChaosRun:
    """Clients in a closed loop, and faults beside them, until enough streams were disturbed."""

    def __init__(
        self,
        flock: Flock,
        cases: Sequence[Case],
        plan: SuitePlan,
        say: Say,
    ) -> None:
        self._flock = flock
        self._cases = cases
        self._plan = plan
        self._say = say
        self._rng = random.Random(plan.seed)
        self._expected: dict[int, Transcript] = {}  # case index -> its undisturbed answer
        self._field = Field(flock, self._rng, cases)
        self._is_ending = False
        self.ledger = Ledger()

    async def run(self) -> Ledger:
        """Until enough streams were disturbed and all have ended."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            metering = tasks.create_task(self._flock.work.run(self._flock.of("worker")))
            await self._record()
            before = self._flock.work.num_generated
            clients = [
                tasks.create_task(self._client(idx)) for idx in range(self._plan.num_clients)
            ]
            try:
                await self._move_and_strike()
            except (TimeoutError, FaultFailed) as exc:  # the table tells what was found until then
                self.ledger.note_violation(Violation(ViolationKind.FAILED, repr(exc)), "the run")
            self._is_ending = True
            await asyncio.wait(clients)
            await self._check_queue()
            await self._check_bills()
            await asyncio.gather(*map(self._flock.work.read, self._flock.of("worker")))
            metering.cancel()
        self.ledger.num_generated = self._flock.work.num_generated - before
        self._note_strikes()
        self.ledger.runs.append(
            RunInfo(
                datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                self._plan.command,
                self._plan.seed,
                round(time.monotonic() - started, 1),
                self._flock.plan.ack_wait_s,
            )
        )
        return self.ledger

    async def _record(self) -> None:
        """The undisturbed answers; the text of a seed does not depend on who else runs."""
        gate = asyncio.Semaphore(_RECORD_CONCURRENCY)

        async def record(idx: int, case: Case) -> None:
            async with gate:
                run = ClientRun(
                    case,
                    self._flock.http_ports,
                    idx % 2,
                    whole_silence_s=self._plan.stream_timeout_s,
                )
                await run.run(self._plan.stream_timeout_s)
            found = check(run.transcript, None)
            if found:
                raise AssertionError(f"undisturbed, {case.kind} gave {found}")
            self._expected[idx] = run.transcript

        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for idx, case in enumerate(self._cases):
                if not case.is_divergent:
                    tasks.create_task(record(idx, case))
        num_tokens = sum(answer.num_tokens for answer in self._expected.values())
        seconds = time.monotonic() - started
        self._say(
            f"recorded {len(self._expected)} undisturbed answers, {num_tokens} tokens, "
            f"in {seconds:.0f} s"
        )

    async def _client(self, idx: int) -> None:
        rng = random.Random(f"{self._plan.seed}.{idx}")
        while not self._is_ending:
            case_idx = rng.randrange(len(self._cases))
            case = self._cases[case_idx]
            run = ClientRun(
                case, self._flock.http_ports, rng.randrange(2), queue_wait_s=self._plan.queue_wait_s
            )
            self._field.running.add(run)
            try:
                await run.run(self._plan.stream_timeout_s)
            finally:
                self._field.running.discard(run)
            await self._judge(run, case_idx)

    async def _judge(self, run: ClientRun, case_idx: int) -> None:
        transcript = run.transcript
        if run.case.is_divergent and transcript.is_done:
            found = await self._check_divergent(run)
        else:
            found = check(transcript, self._expected.get(case_idx))
        for strike in run.strikes:
            if run.number in strike.hits and run.case.shows_pace:
                recovery_s = strike.recovery_s(transcript.arrivals)
                if recovery_s is not None:
                    self.ledger.note_recovery(run, strike, recovery_s)
        if any(strike.name == DAMAGING for strike in run.strikes):
            self.ledger.note_damaged(run, found)
            found = [one for one in found if one.kind not in _DAMAGE]
        self.ledger.note_run(run, found)

    async def _check_divergent(self, run: ClientRun) -> list[Violation]:
        """Against the stored result, and against our own reading of the log."""
        stored = await self._stored(run)
        if stored is None:
            return check(run.transcript, None)
        found = check_same(run.transcript, stored)
        with contextlib.suppress(BrokerError):
            for side in self._flock.sides.clusters:
                fold = await fold_from_log(side, run.transcript.rid)
                if fold is not None and not found:
                    found = check_log(run.transcript, fold)
        return found

    async def _stored(self, run: ClientRun) -> Transcript | None:
        """The result as any frontend tells it; None while none can."""
        for _ in range(100):
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                stored = await run.fetch()
                if stored.is_done:
                    return stored
            await asyncio.sleep(0.2)
        return None

    # Faults

    async def _move_and_strike(self) -> None:
        """Where the service moves, faults strike until it has moved, and once more."""
        if not self._plan.has_move:
            await self._strike(lambda: False)
            return
        moving = asyncio.create_task(ServiceMove(self._flock, self._rng, self._say).run())
        try:
            await self._strike(lambda: not moving.done())
            await moving
            await self._strike_round()
        finally:
            moving.cancel()
            await asyncio.wait({moving})

    async def _strike(self, is_wanted_longer: Callable[[], bool]) -> None:
        """Every fault alone, in a new order each round; then some of them at once."""
        while self._field.num_disturbed < self._plan.num_disturbed or is_wanted_longer():
            await self._strike_round()

    async def _strike_round(self) -> None:
        names = list(self._plan.fault_names)
        self._rng.shuffle(names)
        for name in [*names, "mixed"] if self._plan.num_mixed else names:
            await self._wait_for_streams()
            if name == "mixed":
                await self._strike_mixed()
            else:
                await FAULTS[name].fault(self._field)
            await self._wait_recovered()
            seconds = await self._flock.wait_ready()
            self._say(
                f"{name}: all ready {seconds:.1f} s later; {self._field.num_disturbed} streams "
                f"disturbed, violations {self.ledger.violations or 'none'}"
            )
            await asyncio.sleep(self._rng.uniform(*self._plan.settle_s))

    async def _strike_mixed(self) -> None:
        names = [name for name in self._plan.fault_names if FAULTS[name].is_mixable]
        chosen = self._rng.sample(names, min(self._plan.num_mixed, len(names)))

        async def later(fault: FaultClass) -> None:
            await asyncio.sleep(self._rng.uniform(0, _MIXED_WITHIN_S))
            await fault.fault(self._field)

        self._field.common_name = "mixed"  # whose a silence is, cannot be told
        try:
            async with asyncio.TaskGroup() as tasks:
                for name in chosen:
                    tasks.create_task(later(FAULTS[name]))
        finally:
            self._field.common_name = ""

    async def _wait_for_streams(self) -> None:
        """Until most streams that can run are in their middle."""
        async with asyncio.timeout(60):
            while sum(map(_is_moving, self._field.running)) < max(1, self._plan.num_at_a_time // 2):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _wait_recovered(self) -> None:
        """Until what the last fault hit moves again: the next one shall not prolong its silence."""
        strike = self._field.strikes[-1]
        deadline = time.monotonic() + _RECOVERED_TIMEOUT_S
        while time.monotonic() < deadline:
            hit = [run for run in self._field.running if run.number in strike.hits]
            if all(strike.is_over(run.transcript.arrivals) for run in hit):
                return
            await asyncio.sleep(0.1)

    def _note_strikes(self) -> None:
        for strike in self._field.strikes:
            tally = self.ledger.tally(strike.name)
            tally.num_strikes += 1
            tally.num_hit += len(strike.hits)
            tally.num_running += strike.num_running
            if strike.outage_s:
                tally.outages_s.append(round(strike.outage_s, 3))

    async def _check_queue(self) -> None:
        """When all is told, the queue is empty: nothing is left behind, nothing runs in vain."""
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        num_queued = -1
        while time.monotonic() < deadline:
            with contextlib.suppress(BrokerError):
                num_queued = await self._flock.num_queued()
                if num_queued == 0:
                    return
            await asyncio.sleep(0.2)
        detail = "; ".join(
            [
                await say_left_behind(side, self._flock.card.pool)
                for side in self._flock.sides.clusters
            ]
        )
        violation = Violation(
            ViolationKind.LOST, f"{num_queued} requests are left in the queue: {detail}"
        )
        self.ledger.note_violation(violation, "at the end")

    async def _check_bills(self) -> None:
        """Of those that were recorded before anything was disturbed, too."""
        if DAMAGING in self._plan.fault_names:
            return  # what is stored may be gone
        for side in self._flock.sides.clusters:
            for violation in await check_bills(side):
                self.ledger.note_violation(violation, "at the end")


_DAMAGE = (ViolationKind.LOST, ViolationKind.FAILED)


def _is_moving(run: ClientRun) -> bool:
    return run.transcript.is_accepted and (
        not run.case.is_streamed or run.transcript.num_tokens > 0
    )
