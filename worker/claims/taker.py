"""Takes a request: claims it, starts it, and sees what has happened meanwhile."""

from __future__ import annotations

import asyncio

from shared.catalog.model_catalog import ModelCatalog
from shared.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigError,
    MalformedMessage,
)
from shared.protocol.finish import FinishReason
from shared.protocol.prefix_chain import PrefixChain
from shared.protocol.prompt_object import PromptData, prompt_data
from shared.protocol.request import GenerateRequest
from shared.telemetry.log import get_logger
from worker.capacity.capacity import Capacity
from worker.claims.claimer import OTHER_WEIGHTS_DELAY_S, Claimer
from worker.claims.crash_count import is_suspect
from worker.claims.quarantine import Quarantine
from worker.claims.take_result import (
    Condemned,
    Lost,
    OtherWeights,
    Over,
    Postponed,
    Taken,
    TakeResult,
)
from worker.held.delivery import Delivery
from worker.held.held_request import AfterClaim, HeldRequest
from worker.runs.runs import Runs
from worker.settlement.dead_letters import DeadLetters
from worker.settlement.settler import Settler

_RETRY_DELAY_S = 1.0
_NEXT_SUSPECT_DELAY_S = 1.0  # another worker may be free, or ours by then
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
        try:
            if self._claimer.may_start_early(request, delivery):
                self._runs.start(held, PromptData(request.prompt_ids))
            with self._capacity.claiming():
                result = await self._claimer.take(request, delivery)
            return await self._apply(held, result)
        except BrokerError as exc:
            log.warning("take_failed", rid=held.rid, error=str(exc))
            await self._settler.give_back(held, _RETRY_DELAY_S)
            return False

    async def _apply(self, held: HeldRequest, result: TakeResult) -> bool:
        match result:
            case Taken():
                await self._begin(held, result)
            case Condemned(crashes=crashes):
                await self._dead_letters.give_up(held, crashes)
            case Over(why=why):
                log.debug("not_taken", rid=held.rid, why=why)
                await self._settler.leave(held)
            case Postponed(delay_s=delay_s):
                await self._settler.give_back(held, delay_s)
                return False
            case Lost():
                self._settler.forget(held)
            case OtherWeights(epoch=epoch, revision=pinned):
                delay_s = OTHER_WEIGHTS_DELAY_S
                await self._settler.release_claimed(
                    held, epoch, has_crashed=False, delay_s=delay_s, pinned=pinned
                )
        return True

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
        elif await self._may_run(held, taken):
            self._start(held, taken, prompt)

    async def _begin_alone(self, held: HeldRequest, taken: Taken, prompt: PromptData) -> None:
        """In quarantine: returns when the request has made progress, or is gone."""
        self._runs.undo(held)
        if self._capacity.is_quarantined:
            await self._release(held, taken, _NEXT_SUSPECT_DELAY_S)
            return
        async with self._quarantine.of(held, taken.crashes):
            if not await self._may_run(held, taken):
                return
            result = await self._claimer.claim_alone(held.request, held.delivery, taken)
            if not isinstance(result, Taken):
                await self._apply(held, result)
            elif await self._may_run(held, result):
                self._start(held, result, prompt)
                await self._quarantine.wait_proven(held)

    async def _may_run(self, held: HeldRequest, taken: Taken) -> bool:
        """If it was ended, or is not for us to run, that is settled."""
        match held.after_claim(can_run=self._capacity.can_run):
            case AfterClaim.RUN:
                return True
            case AfterClaim.RELEASE:
                await self._release(held, taken)
            case AfterClaim.LEAVE:
                await self._settler.leave(held)
        return False

    def _start(self, held: HeldRequest, taken: Taken, prompt: PromptData) -> None:
        held.run_under(taken.epoch, taken.workers, taken.waited_s)
        self._runs.confirm(held, taken.prefix, prompt)
        if held.trace is not None:
            held.trace.on_claimed(taken.epoch, len(taken.prefix.tokens), taken.before)

    async def _release(self, held: HeldRequest, taken: Taken, delay_s: float = 0.0) -> None:
        await self._settler.release_claimed(
            held, taken.epoch, has_crashed=held.has_crashed, delay_s=delay_s
        )

    async def _prompt(self, request: GenerateRequest) -> PromptData:
        """Raises ConfigError when it is not in the store, MalformedMessage, BrokerUnavailable."""
        if not request.prompt_object:
            return prompt_data(request, b"")
        try:
            async with asyncio.timeout(_PROMPT_TIMEOUT_S):
                return prompt_data(request, await self._catalog.object(request.prompt_object))
        except TimeoutError as exc:
            raise BrokerUnavailable(f"cannot fetch the prompt: {exc!r}") from exc
