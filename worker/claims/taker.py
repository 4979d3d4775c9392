"""Takes a request: claims it, starts it, and sees what has happened meanwhile."""

from __future__ import annotations

import asyncio
import time

from nats.errors import Error as NatsError

from shared.catalog.model_catalog import ModelCatalog
from shared.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigError,
    MalformedMessage,
    ProtocolError,
)
from shared.protocol.finish import FinishReason
from shared.protocol.prefix_chain import PrefixChain
from shared.protocol.prompt_object import PromptData, prompt_data
from shared.protocol.request import GenerateRequest
from shared.telemetry.log import get_logger
from worker.capacity.capacity import Capacity
from worker.claims.claimer import (
    OTHER_WEIGHTS_DELAY_S,
    Claimer,
    Condemned,
    Lost,
    OtherWeights,
    Over,
    Postponed,
    Taken,
    TakeResult,
)
from worker.claims.crash_count import is_suspect
from worker.claims.quarantine import Quarantine
from worker.held.delivery import Acknowledger, Delivery
from worker.held.held_request import HeldRequest
from worker.held.held_requests import HeldRequests
from worker.held.run_trace import RunTraces
from worker.runs.runs import Runs
from worker.settlement.dead_letters import DeadLetters
from worker.settlement.hand_over import HandOver
from worker.settlement.settler import Settler
from worker.telemetry.worker_metrics import WorkerMetrics
from worker.weights.adapters import Adapters

_RETRY_DELAY_S = 1.0
_NEXT_SUSPECT_DELAY_S = 1.0  # another worker may be free, or ours by then
_PROMPT_TIMEOUT_S = 10.0

log = get_logger(__name__)


class Taker:
    """From a request that this worker may have to a run of it."""

    def __init__(
        self,
        claimer: Claimer,
        adapters: Adapters,
        catalog: ModelCatalog,
        acks: Acknowledger,
        held_requests: HeldRequests,
        capacity: Capacity,
        runs: Runs,
        hand_over: HandOver,
        settler: Settler,
        quarantine: Quarantine,
        dead_letters: DeadLetters,
        traces: RunTraces,
        metrics: WorkerMetrics,
    ) -> None:
        self._claimer = claimer
        self._adapters = adapters
        self._catalog = catalog
        self._acks = acks
        self._held_requests = held_requests
        self._capacity = capacity
        self._runs = runs
        self._hand_over = hand_over
        self._settler = settler
        self._quarantine = quarantine
        self._dead_letters = dead_letters
        self._traces = traces
        self._metrics = metrics

    async def take(
        self, request: GenerateRequest, delivery: Delivery, chain: PrefixChain | None = None
    ) -> bool:
        """Claim it; a first delivery starts in the engine while the claim is on its way.

        Whether it has come to a claim, ours or a later one, or was over. If not, it was given back,
        or a shared delivery is for the other worker to go on with.
        """
        if not self._capacity.admits:  # since the delivery came, or an offer of it was made
            await self._acks.nak_unclaimed(delivery)
            return False
        visible = self._runs.visible_text(request)
        trace = self._traces.begin(request, delivery)
        held = HeldRequest(request, delivery, visible, chain=chain, trace=trace)
        self._held_requests.add(held)
        self._capacity.note(held)
        try:
            if self._may_start_early(request, delivery):
                self._runs.start(held, PromptData(request.prompt_ids))
            with self._capacity.claiming():
                result = await self._claimer.take(request, delivery)
            return await self._apply(held, result)
        except (BrokerError, ProtocolError) as exc:
            log.warning("take_failed", rid=held.rid, error=str(exc))
            self._runs.drop(held)
            await self._acks.nak_unclaimed(held.delivery, _RETRY_DELAY_S)
            return False

    def _may_start_early(self, request: GenerateRequest, delivery: Delivery) -> bool:
        """It is new, and everything is here that it needs."""
        is_new = delivery.num_delivered == 1 and not request.may_be_copy
        is_whole = not (request.prompt_object or request.images)
        return is_new and is_whole and self._adapters.has(request.adapter)

    async def _apply(self, held: HeldRequest, result: TakeResult) -> bool:
        match result:
            case Taken():
                await self._begin(held, result)
            case Condemned():
                self._runs.abort(held)
                await self._dead_letters.give_up(held, result.crashes)
            case Over():
                self._runs.drop(held)
                log.debug("not_taken", rid=held.rid, why=result.why)
                await self._acks.ack_over(held.delivery)
            case Postponed():
                self._runs.drop(held)
                await self._acks.nak_unclaimed(held.delivery, result.delay_s)
                return False
            case Lost():
                self._runs.drop(held)
            case OtherWeights():
                await self._leave_to_other_weights(held, result)
        return True

    async def _leave_to_other_weights(self, held: HeldRequest, result: OtherWeights) -> None:
        """Nothing was logged under our claim, and the release says which weights are needed."""
        held.epoch = result.epoch
        self._runs.abort(held)
        delay_s = OTHER_WEIGHTS_DELAY_S
        await self._hand_over.release(held, crashed=False, delay_s=delay_s, pinned=result.revision)
        self._runs.drop(held)  # only now: a drain waits for it

    async def _begin(self, held: HeldRequest, taken: Taken) -> None:
        """The claim is stored; what has happened while it was on its way is told now."""
        try:
            prompt = await self._prompt(held.request)
        except (ConfigError, MalformedMessage) as exc:
            log.error("prompt_missing", rid=held.rid, error=str(exc))
            await self._settler.end(held, FinishReason.ERROR, "the prompt is lost")
            return
        if is_suspect(taken.crashes):
            await self._begin_alone(held, taken, prompt)
        elif not await self._is_called_off(held, taken):
            self._start(held, taken, prompt)

    async def _begin_alone(self, held: HeldRequest, taken: Taken, prompt: PromptData) -> None:
        """In quarantine: returns when the request has made progress, or is gone."""
        self._runs.undo(held)
        if self._capacity.is_quarantined:
            await self._give_back(held, taken, _NEXT_SUSPECT_DELAY_S)
            return
        async with self._quarantine.of(held, taken.crashes):
            if await self._is_called_off(held, taken):
                return
            result = await self._claimer.claim_alone(held.request, held.delivery, taken)
            if not isinstance(result, Taken):
                await self._apply(held, result)
            elif not await self._is_called_off(held, result):
                self._start(held, result, prompt)
                await self._quarantine.wait_proven(held)

    async def _is_called_off(self, held: HeldRequest, taken: Taken) -> bool:
        """Ended, or not for us to run: then that is settled."""
        if held.is_ended:
            self._runs.drop(held)
            await self._acks.ack_over(held.delivery)
            return True
        if held.is_revoked or not self._capacity.can_run:
            await self._give_back(held, taken)
            return True
        return False

    def _start(self, held: HeldRequest, taken: Taken, prompt: PromptData) -> None:
        self._count(held, taken)
        held.workers = taken.workers
        held.queued_by = time.monotonic() - taken.waited_s
        self._runs.confirm(held, taken.epoch, taken.prefix, prompt)
        if held.trace is not None:
            held.trace.on_claimed(taken.epoch, len(taken.prefix.tokens), taken.before)

    async def _give_back(self, held: HeldRequest, taken: Taken, delay_s: float = 0.0) -> None:
        held.epoch = taken.epoch
        self._runs.abort(held)
        await self._hand_over.release(held, crashed=held.has_crashed, delay_s=delay_s)
        self._runs.drop(held)  # only now: a drain waits for it

    def _count(self, held: HeldRequest, taken: Taken) -> None:
        self._metrics.requests_taken.inc()
        self._metrics.prompt_tokens.inc(held.request.reply.num_prompt_tokens)
        if taken.prefix.tokens:
            self._metrics.requests_resumed.inc()

    async def _prompt(self, request: GenerateRequest) -> PromptData:
        """Raises ConfigError when it is not in the store, MalformedMessage, BrokerUnavailable."""
        if not request.prompt_object:
            return prompt_data(request, b"")
        try:
            async with asyncio.timeout(_PROMPT_TIMEOUT_S):
                return prompt_data(request, await self._catalog.object(request.prompt_object))
        except (NatsError, TimeoutError) as exc:
            raise BrokerUnavailable(f"cannot fetch the prompt: {exc!r}") from exc
