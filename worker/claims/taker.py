"""Takes a request: claims it and starts it, or settles what became of it instead."""

from __future__ import annotations

import asyncio

from shared.catalog.model_catalog import ModelCatalog
from shared.errors import BrokerError, BrokerUnavailable, ConfigError, MalformedMessage
from shared.protocol.dead import Crash
from shared.protocol.finish import FinishReason
from shared.protocol.prefix_chain import PrefixChain
from shared.protocol.prompt_object import PromptData, prompt_data
from shared.protocol.request import GenerateRequest
from shared.telemetry.log import get_logger
from worker.capacity.capacity import Capacity
from worker.claims.claim_flow import ClaimFlow
from worker.claims.claim_steps import (
    ClaimStep,
    Ending,
    Failed,
    GivenUp,
    Isolate,
    Lost,
    OtherWeights,
    Over,
    Postponed,
    Released,
    Run,
    SeeRoom,
    StoreClaim,
    Taken,
)
from worker.claims.claimer import Claimer
from worker.claims.quarantine import Quarantine, Trial
from worker.held.delivery import Delivery
from worker.held.held_request import HeldRequest
from worker.runs.runs import Runs
from worker.settlement.dead_letters import DeadLetters
from worker.settlement.settler import Settler

_PROMPT_TIMEOUT_S = 10.0

log = get_logger(__name__)


class Taker:
    """From a request that this worker may have to a run of it."""

    def __init__(
        self,
        claimer: Claimer,
        catalog: ModelCatalog,
        runs: Runs,
        capacity: Capacity,
        settler: Settler,
        quarantine: Quarantine,
        dead_letters: DeadLetters,
    ) -> None:
        self._claimer = claimer
        self._catalog = catalog
        self._runs = runs
        self._capacity = capacity
        self._settler = settler
        self._quarantine = quarantine
        self._dead_letters = dead_letters

    async def take(
        self, request: GenerateRequest, delivery: Delivery, chain: PrefixChain | None = None
    ) -> bool:
        """Claim it; a first delivery starts in the engine while the claim is on its way.

        Whether it has come to a claim, ours or a later one, or was over. If not, it was given back,
        or a shared delivery is for the other worker to go on with.
        """
        held = self._runs.hold(request, delivery, chain)
        self._capacity.note(held)
        flow = self._claimer.flow(request, delivery)
        try:
            if held.finish is None and self._claimer.may_start_early(request, delivery):
                self._runs.start(held, PromptData(request.prompt_ids))
            with self._capacity.claiming():
                step = await self._claimer.take(flow)
            ending = await self._see_through(held, flow, step)
        except BrokerError as exc:
            log.warning("take_failed", rid=held.rid, error=str(exc))
            ending = flow.on_broker_error()
            await self._end(held, ending)
        return not isinstance(ending, Postponed)

    async def _see_through(self, held: HeldRequest, flow: ClaimFlow, step: ClaimStep) -> Ending:
        """Do what the flow asks for, up to its end."""
        while not isinstance(step, Ending):
            match step:
                case Taken(cost=cost):
                    held.cost.claimed(cost)
                    step = await self._look_for_prompt(held, flow)
                case SeeRoom():
                    step = flow.on_room(held.after_claim(can_run=self._capacity.can_run))
                case Isolate(crashes=crashes):
                    return await self._isolate(held, flow, crashes)
                case StoreClaim():
                    step = await self._claimer.claim_alone(flow, step)
        await self._end(held, step)
        return step

    async def _isolate(
        self, held: HeldRequest, flow: ClaimFlow, crashes: tuple[Crash, ...]
    ) -> Ending:
        """In quarantine: returns when the request has made progress, or is gone."""
        self._runs.undo(held)
        match self._quarantine.trial(held, crashes):
            case Trial.LATER:
                later = flow.on_occupied(self._quarantine.again_s)
                return await self._see_through(held, flow, later)
            case Trial.IN_COMPANY:
                place, step = self._quarantine.in_company(held), flow.on_company
            case Trial.ALONE:
                place, step = self._quarantine.of(held, crashes), flow.on_isolated
        async with place:
            ending = await self._see_through(held, flow, step())
            if isinstance(ending, Run):
                await self._quarantine.wait_proven(held)
            return ending

    async def _end(self, held: HeldRequest, ending: Ending) -> None:
        match ending:
            case Run(taken=taken, prompt=prompt):
                self._start(held, taken, prompt)
            case GivenUp(crashes=crashes, cost=cost):
                held.cost.claimed(cost)
                await self._dead_letters.give_up(held, crashes)
            case Over(why=why):
                log.debug("not_taken", rid=held.rid, why=why)
                await self._settler.leave(held)
            case Postponed(delay_s=delay_s):
                await self._settler.give_back(held, delay_s)
            case Lost():
                self._settler.forget(held)
            case OtherWeights(epoch=epoch, revision=pinned, delay_s=delay_s):
                await self._settler.release_claimed(
                    held, epoch, has_crashed=False, delay_s=delay_s, pinned=pinned
                )
            case Released(epoch=epoch, delay_s=delay_s):
                await self._settler.release_claimed(
                    held, epoch, has_crashed=held.has_crashed, delay_s=delay_s
                )
            case Failed(message=message):
                await self._settler.end(held, FinishReason.ERROR, message)

    def _start(self, held: HeldRequest, taken: Taken, prompt: PromptData) -> None:
        """What has been claimed goes on, under the claim."""
        held.run_under(
            taken.epoch,
            taken.workers,
            taken.waited_s,
            is_acked_by_reader=taken.is_acked_by_reader,
        )
        held.num_cached_before = taken.num_cached_tokens
        self._runs.confirm(held, taken.prefix, prompt, taken.pages)
        if held.trace is not None:
            held.trace.on_claimed(taken.epoch, len(taken.prefix.tokens), taken.before)

    async def _look_for_prompt(self, held: HeldRequest, flow: ClaimFlow) -> ClaimStep:
        try:
            prompt = await self._prompt(held.request)
        except (ConfigError, MalformedMessage) as exc:
            log.error("prompt_missing", rid=held.rid, error=str(exc))
            return flow.on_prompt_lost()
        return flow.on_prompt(prompt)

    async def _prompt(self, request: GenerateRequest) -> PromptData:
        """Raises ConfigError when it is not in the store, MalformedMessage, BrokerUnavailable."""
        if not request.prompt_object:
            return prompt_data(request, b"")
        try:
            async with asyncio.timeout(_PROMPT_TIMEOUT_S):
                return prompt_data(request, await self._catalog.object(request.prompt_object))
        except TimeoutError as exc:
            raise BrokerUnavailable(f"cannot fetch the prompt: {exc!r}") from exc
