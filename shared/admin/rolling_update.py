"""Other weights for a pool, worker after worker: whoever runs it may die, and it is run again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from shared.admin.control import CheckWeights, UpdateWeights
from shared.admin.control_plane import ControlPlane, Target
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import BrokerError, ConfigError, InvalidRequest
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import WorkerCard, WorkerState

_POLL_S = 0.2
_CHECK_TIMEOUT_S = 60.0
_MISSED_POLLS = 3


class WeightsOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator wants. Names as in SGLang, where it has one."""

    model_path: str
    model: str | None = None
    workers: tuple[str, ...] = ()  # only these: a trial, of which a restarted worker knows nothing
    finish_timeout_s: float = 600.0
    load_timeout_s: float = 1800.0
    max_unavailable: int = 1


class UpdateResult(msgspec.Struct, frozen=True):
    """How it went; `failed` says why, by worker."""

    revision: str
    updated: tuple[str, ...]
    had_it: tuple[str, ...]
    gone: tuple[str, ...]  # died meanwhile: those that come after them have the new weights
    failed: dict[str, str]

    @property
    def ok(self) -> bool:
        return not self.failed


class RollingUpdate:
    """One order. Each worker is consistent alone; this one only says whose turn it is."""

    def __init__(
        self,
        cluster: Cluster,
        plane: ControlPlane,
        order: WeightsOrder,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._catalog = ModelCatalog(cluster)
        self._plane = plane
        self._order = order
        self._say = say
        self._target = Target(order.model, order.workers)
        self._updated: list[str] = []
        self._gone: list[str] = []
        self._failed: dict[str, str] = {}

    async def run(self) -> UpdateResult:
        """Raises ConfigError, and nothing is changed, when a worker finds that it cannot be done;
        NotFound or InvalidRequest for an order that nobody can follow; BrokerError.
        """
        card = await self._checked(await self._workers())
        before = None
        if not self._order.workers:
            before = await self._catalog.replace_weights(card, self._order.model_path)
        had_it = tuple(
            worker.worker for worker in await self._workers() if worker.revision == card.revision
        )
        await self._roll(card.revision)
        if self._failed and before is not None and not self._updated:
            await self._catalog.put_back(before)
        return UpdateResult(
            card.revision, tuple(self._updated), had_it, tuple(self._gone), self._failed
        )

    async def _workers(self) -> list[WorkerCard]:
        """The workers of the target. One that was named and is gone by now is no error any more."""
        cards = await self._plane.workers(Target(self._order.model))
        named = self._order.workers
        return [card for card in cards if not named or card.worker in named]

    async def _checked(self, workers: Sequence[WorkerCard]) -> ModelCard:
        """What all workers found at the path."""
        if self._order.max_unavailable < 1:
            raise InvalidRequest(
                f"max_unavailable is {self._order.max_unavailable}, must be at least 1",
                param="max_unavailable",
            )
        await self._plane.workers(self._target)  # names those that do not live
        models = sorted({worker.model for worker in workers})
        if len(models) != 1:
            raise InvalidRequest(
                f"name the model: {', '.join(models) or 'no worker'} is served", param="model"
            )
        check = CheckWeights(self._order.model_path)
        replies = await asyncio.gather(
            *(self._plane.send_one(worker, check, _CHECK_TIMEOUT_S) for worker in workers)
        )
        for reply in replies:
            if not reply.ok or reply.card is None:
                raise ConfigError(f"{reply.worker}: {reply.message or 'it tells no model card'}")
        cards = [reply.card for reply in replies if reply.card is not None]
        if len({card.revision for card in cards}) != 1:
            found = ", ".join(
                f"{reply.worker}: {card.revision}"
                for reply, card in zip(replies, cards, strict=True)
            )
            raise ConfigError(f"{self._order.model_path} is not the same everywhere: {found}")
        return cards[0]

    async def _roll(self, revision: str) -> None:
        """Until all that live have it, or one has failed."""
        done: set[str] = set()
        running: dict[asyncio.Task[None], str] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                if not self._failed:
                    for worker in await self._workers():
                        if len(running) >= self._order.max_unavailable:
                            break
                        if worker.revision != revision and worker.worker not in done:
                            done.add(worker.worker)
                            task = tasks.create_task(self._update(worker, revision))
                            running[task] = worker.worker
                if not running:
                    return
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    del running[task]

    async def _update(self, worker: WorkerCard, revision: str) -> None:
        order = self._order
        self._say(f"{worker.worker}: updating")
        update = UpdateWeights(order.model_path, revision, order.finish_timeout_s)
        reply = await self._plane.send_one(worker, update, _CHECK_TIMEOUT_S)
        if reply.ok:
            failure = await self._wait(worker, revision, reply.num_updates)
        else:
            failure = None if await self._is_gone(worker) else reply.message
        if failure is not None:
            self._failed[worker.worker] = failure
            self._say(f"{worker.worker}: {failure}")

    async def _wait(self, worker: WorkerCard, revision: str, num_updates: int) -> str | None:
        """Why it failed; None when it has the weights, or is no more."""
        deadline = time.monotonic() + self._order.finish_timeout_s + self._order.load_timeout_s
        while time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            card = await self._card(worker)
            if card is None:
                if await self._is_gone(worker):
                    return None
            elif card.num_updates >= num_updates and card.state is not WorkerState.UPDATING:
                if card.update_error:
                    return card.update_error
                if card.revision == revision and card.state is not WorkerState.LOADING:
                    self._updated.append(worker.worker)
                    self._say(f"{worker.worker}: serves revision {revision}")
                    return None
        return "it did not end in time"

    async def _is_gone(self, worker: WorkerCard) -> bool:
        """Whether its heartbeat stays away."""
        for _ in range(_MISSED_POLLS):
            if await self._card(worker) is not None:
                return False
            await asyncio.sleep(_POLL_S)
        self._gone.append(worker.worker)
        self._say(f"{worker.worker}: is gone")
        return True

    async def _card(self, worker: WorkerCard) -> WorkerCard | None:
        try:
            cards = await self._plane.workers(Target(worker.model))
        except BrokerError:
            return worker  # who cannot see, cannot judge
        return next((card for card in cards if card.worker == worker.worker), None)
