"""What an operator can do to a running pool: each order goes to workers, each answer comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import nats.errors

from shared.admin.control import ControlReply, ControlRequest, decode_control_reply, encode_control
from shared.admin.request_end import end_request
from shared.broker.kv_bucket import readable
from shared.catalog.adapter_catalog import AdapterCatalog
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import Cluster
from shared.errors import BrokerError, ConfigError, NotFound, ProtocolError
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from shared.protocol.model_cards import ModelCard
from shared.protocol.request import GenerateRequest
from shared.protocol.role_cards import WorkerCard
from shared.snapshot.cluster_snapshot import place_of_worker
from shared.subjects import is_rid
from shared.telemetry.log import get_logger

ANSWER_TIMEOUT_S = 10.0

log = get_logger(__name__)
_NO_SUCH_CONSUMER = 10014


@dataclass(frozen=True, slots=True)
class Target:
    """Which workers are meant: all there are, those of a model, or some by their ids."""

    model: str | None = None
    workers: tuple[str, ...] = ()


class ControlPlane:
    """Knows nothing between two calls: any number of them may be at work."""

    def __init__(self, cluster: Cluster, by: str) -> None:
        self._cluster = cluster
        self._by = by  # who says so, in the records of what was ended
        self._catalog = ModelCatalog(cluster)
        self._workers = cluster.bucket(cluster.subjects.workers_bucket)

    async def models(self) -> list[ModelCard]:
        """Raises BrokerError."""
        return await self._catalog.cards()

    async def workers(self, target: Target = Target()) -> list[WorkerCard]:
        """Cards of the living ones that are meant, by model and start.

        Raises NotFound for a model or worker that is not there, or BrokerError.
        """
        await self._check_model(target.model)
        cards = readable(WorkerCard, await self._workers.entries())
        if target.model is not None:
            cards = [card for card in cards if card.model == target.model]
        if target.workers:
            unknown = set(target.workers) - {card.worker for card in cards}
            if unknown:
                raise NotFound(f"No worker {', '.join(sorted(unknown))} lives.", param="workers")
            cards = [card for card in cards if card.worker in target.workers]
        return sorted(cards, key=place_of_worker)

    async def send(
        self, target: Target, request: ControlRequest, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> list[ControlReply]:
        """All that are meant, at once; who does not answer in time is answered for."""
        cards = await self.workers(target)
        return await asyncio.gather(*(self.send_one(card, request, timeout_s) for card in cards))

    async def send_one(
        self, card: WorkerCard, request: ControlRequest, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> ControlReply:
        subject = self._cluster.subjects.admin_worker(card.pool, card.worker)
        try:
            answer = await self._cluster.nc.request(subject, encode_control(request), timeout_s)
            return decode_control_reply(answer.data)
        except nats.errors.NoRespondersError:
            return ControlReply(card.worker, False, "it is gone, or just starting")
        except nats.errors.Error as exc:
            why = str(exc) or type(exc).__name__
            return ControlReply(card.worker, False, f"no answer in {timeout_s:g} s: {why}")
        except ProtocolError as exc:
            return ControlReply(card.worker, False, f"its answer cannot be read: {exc}")

    async def abort(self, group_id: str) -> int:
        """End a request, queued or running, with all its choices; how many had not ended.

        Raises NotFound when it is not in the queue (any more), or BrokerError.
        """
        if not is_rid(group_id):
            raise NotFound(f"{group_id[:64]!r} is no request id.", param="rid")
        requests = await self._cluster.queue.of_group(group_id)
        if not requests:
            raise NotFound(f"No request {group_id} is queued or running.", param="rid")
        return await self._end_all(requests)

    async def abort_all(self, model: str) -> int:
        """End everything that is queued or runs for a model. Raises NotFound or BrokerError."""
        pool = (await self._check_model(model))[0].pool
        return await self._end_all(await self._cluster.queue.of_pool(pool))

    async def _check_model(self, model: str | None) -> list[ModelCard]:
        """The cards that are meant. Raises NotFound."""
        cards = await self._catalog.cards()
        if model is None:
            return cards
        cards = [card for card in cards if card.name == model]
        if not cards:
            raise NotFound(f"No model {model!r} is served.", param="model")
        return cards

    async def _end_all(self, requests: Sequence[GenerateRequest]) -> int:
        return sum([await self._end(request) for request in requests])

    async def _end(self, request: GenerateRequest) -> bool:
        """False when it had ended before."""
        end = End(
            prev=0,
            reason=FinishReason.CANCEL,
            by=self._by,
            message="The request was aborted by an operator.",
            reply=request.reply,
        )
        is_new = await end_request(self._cluster, request.rid, request.pool, end)
        if is_new and request.prompt_object:
            with contextlib.suppress(BrokerError):  # else rubbish is left
                await self._catalog.erase_object(request.prompt_object)
        return is_new


def worker_facts(card: WorkerCard) -> dict[str, object]:
    """What is worth knowing of a worker card."""
    return {
        "worker": card.worker,
        "model": card.model,
        "revision": card.revision,
        "state": card.state.value,
        "sleep_level": card.sleep_level,
        "running": card.num_running,
        "waiting": card.num_waiting,
        "host": card.host,
        "pid": card.pid,
    }


async def forget_model(cluster: Cluster, plane: ControlPlane, name: str) -> int:
    """End what is queued for it, then delete all of it; returns how many requests were ended.

    Its tokenizer files stay as long as results that are kept are read with them; a frontend deletes
    them then, if no other card names them. Raises NotFound, ConfigError when it is being served, or
    BrokerError.
    """
    catalog = ModelCatalog(cluster)
    card = next((card for card in await catalog.cards() if card.name == name), None)
    if card is None:
        raise NotFound(f"There is no model {name!r}.", param="model")
    if (await catalog.heartbeats()).has(card.pool):
        raise _served(name)
    num_ended = await plane.abort_all(name)
    for adapter in card.adapters:
        with contextlib.suppress(NotFound):
            await AdapterCatalog(cluster).remove(card.pool, adapter.name)
    if not await catalog.delete(card.pool):
        raise _served(name)
    await _delete_queue(cluster, card)
    return num_ended


def _served(name: str) -> ConfigError:
    return ConfigError(f"the model {name!r} is being served: stop its workers first")


async def _delete_queue(cluster: Cluster, card: ModelCard) -> None:
    """Only `end` records are left of its requests: nobody waits for what is in there."""
    subjects, js = cluster.subjects, cluster.js
    stream = subjects.requests_stream
    await js.purge(stream, subjects.requests(card.pool, "*"))
    for name in subjects.consumers(card.pool):
        await _delete_consumer(cluster, name)


async def _delete_consumer(cluster: Cluster, name: str) -> None:
    try:
        await cluster.js.api(f"CONSUMER.DELETE.{cluster.subjects.requests_stream}.{name}")
    except BrokerError as exc:
        if exc.err_code != _NO_SUCH_CONSUMER:
            raise
