"""Simulated processes: the real roles on simulated loops and connections."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detok.detokenizer import Detokenizer
from detok.lease import Tenure
from frontend.assembly.inference_parts import InferenceParts
from frontend.assembly.older_parts import OlderParts
from frontend.assembly.process_parts import ProcessParts
from frontend.assembly.stream_parts import StreamParts
from frontend.fields.sampling_fields import Sampling
from frontend.inference.inference import Inference
from frontend.jobs.job import Caller, Job, Prompt
from frontend.models.model_directory import ModelText, ServedModel
from frontend.streams.generation import Interrupt, Interrupted
from frontend.surfaces.answer import Answer
from frontend.text.event_id import parse_event_id
from shared.broker.jetstream import JetStream
from shared.checkpoint.model_files import ModelFiles
from shared.cluster import Cluster
from shared.errors import EngineHung, RequestError
from shared.protocol.reply import Surface, TextParams
from shared.protocol.role_cards import WorkerRole
from shared.protocol.sampling import SamplingParams
from shared.subjects import new_incarnation
from shared.telemetry.tracing import NO_TRACER
from shared.token_log.ownership import OwnershipLog
from tests.simulation.connection import Connection
from tests.simulation.house import House
from tests.simulation.process_loop import ProcessLoop
from tests.simulation.reader import Reader
from tests.simulation.scripted_engine import ScriptedEngine
from worker.weights.checkpoint import Checkpoint
from worker.weights.lora_folder import LoraFolder
from worker.weights.worker_model import ServedWeights, WorkerModel
from worker.worker import Worker

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


class Node:
    """One process: a loop, a connection, and a main coroutine whose end is the process's."""

    def __init__(self, sim: Simulation, role: str) -> None:
        self.sim = sim
        self.id = new_incarnation(role)
        self.house: House = sim.house
        self.loop = ProcessLoop(sim.world, self.id)  # type: ignore[abstract]
        self.connection = Connection(
            sim.world, sim.broker, self.loop, self.id, sim.schedule.weather
        )
        subjects = self.house.subjects
        js = JetStream(self.connection)  # type: ignore[arg-type]
        self.cluster = Cluster(
            self.house.worker_config,
            self.connection,  # type: ignore[arg-type]
            js,
            subjects,
            OwnershipLog(js, subjects),
        )
        self.cluster.level._in_force = sim.level  # read before a role starts
        self.connection.on_loss = self.cluster.reconnects.notify_loss
        self.connection.on_reconnect = self.cluster.reconnects.notify
        self.is_leaving = False
        self.loop.call_soon(self._start)

    def _start(self) -> None:
        self._task = self.loop.create_task(self.main())
        self._task.add_done_callback(self._on_done)

    def another(self) -> Node:
        """In its place."""
        return type(self)(self.sim)  # type: ignore[call-arg]

    async def main(self) -> None:
        raise NotImplementedError

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = task.exception()
        if error is not None and not isinstance(error, EngineHung):
            self.sim.violations.append(f"{self.id} died of {error!r}")
            self.sim.errors.append(error)
        self.loop.kill_process()
        self.connection.kill()
        self.sim.on_exit(self)

    @property
    def is_alive(self) -> bool:
        return not self.loop.is_dead

    @property
    def is_running(self) -> bool:
        return not self.loop.is_dead and not self.loop.is_stopped

    @property
    def is_in_trouble(self) -> bool:
        return self.loop.is_stopped or self.connection.is_cut

    def leave(self) -> None:
        """SIGTERM."""
        self.is_leaving = True

    def kill(self) -> None:
        """kill -9."""
        self.loop.kill_process()
        self.connection.kill()


class WorkerNode(Node):
    """A whole worker with a scripted engine."""

    def __init__(self, sim: Simulation, role: WorkerRole = "both") -> None:
        super().__init__(sim, "worker")
        self.role = role
        self.engine: ScriptedEngine | None = None
        self._worker: Worker | None = None

    def another(self) -> Node:
        return WorkerNode(self.sim, self.role)

    async def main(self) -> None:
        def make_engine(_: Path, on_event: Any, on_exit: Any) -> ScriptedEngine:
            self.engine = ScriptedEngine(
                self.loop,
                self.sim.world.rng,
                self.sim.record,
                self.sim.schedule.step_s,
                lambda: self.sim.on_poison(self),
                on_event,
                on_exit,
            )
            return self.engine

        weights = ServedWeights(Checkpoint(ModelFiles(Path(), {}, {}), self.house.card, ""))
        self._worker = worker = Worker(
            dataclasses.replace(self.house.worker_config, role=self.role),
            self.cluster,
            self.id,
            WorkerModel(self.house.card, self.house.tokenizer, weights, LoraFolder(Path())),
            make_engine,
            self.house.worker_metrics,
        )
        await worker.run()

    def leave(self) -> None:
        super().leave()
        if self._worker is not None:
            self.loop.call_soon(self._worker.shutdown.ask)


class DetokNode(Node):
    """A whole detokenizer."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, "detok")
        self._detok: Detokenizer | None = None

    @property
    def tenures(self) -> list[Tenure]:
        return [] if self._detok is None else self._detok._share.held

    async def main(self) -> None:
        self._detok = Detokenizer(self.cluster, self.house.detok_config)
        await self._detok.run()

    def leave(self) -> None:
        super().leave()
        if self._detok is not None:
            self.loop.call_soon(self._detok.shutdown.ask)


class ScriptedJobs:
    """In place of the parsers of request bodies: a body says prompt, length and stop strings."""

    def __init__(self, node_house: House) -> None:
        text = ModelText(node_house.tokenizer, None, None, None, 1, None)  # type: ignore[arg-type]
        self._model = ServedModel(node_house.card, text)

    async def job(self, body: dict[str, Any], caller: Caller) -> Job:
        sampling = Sampling(
            params=SamplingParams(max_tokens=1, seed=1),
            text=TextParams(stop=tuple(body["stop"])),
            max_tokens=body["max_tokens"],
            max_tokens_is_default=False,
            max_tokens_param="max_tokens",
            prompt_param="prompt",
            n=1,
            priority=0,
            cache_salt="",
        )
        return Job(Surface.GENERATE, self._model, (Prompt(body["prompt"]),), sampling, stream=True)


class FrontendNode(Node):
    """A frontend without HTTP: what lies below the transports is the real thing."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, "frontend")

    async def main(self) -> None:
        metrics, config = self.house.frontend_metrics, self.house.frontend_config
        with socket.socket() as unused:
            process = ProcessParts.of(config, self.id, unused, None, metrics, NO_TRACER)
            streams = StreamParts.of(process, self.cluster, OlderParts())
            inference = InferenceParts.of(process, streams)
        self._inference = Inference(inference.side, on_closed=lambda: None)
        jobs = inference.surfaces.jobs
        jobs._readers[Surface.GENERATE] = ScriptedJobs(self.house)
        await streams.router.start()
        await streams.cache_scope.start()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for part in (
                streams.replayer,
                inference.stream_watch,
                streams.queue_watch,
                streams.heartbeat,
                inference.orphan_sweeper,
            ):
                tasks.create_task(part.run())

    def serve(self, reader: Reader) -> None:
        """A client has connected: it asks, or resumes."""
        reader.num_connections += 1
        self.loop.call_soon(self._spawn, self._serve(reader, reader.num_connections))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.create_task(work)

    async def _serve(self, reader: Reader, connection: int) -> None:
        def is_connected() -> bool:
            return reader.num_connections == connection and not reader.is_over

        try:
            answer = await self._open(reader)
        except RequestError as exc:
            if is_connected():
                self.sim.on_refused(reader, exc)
            return
        if not is_connected():  # it did not wait
            answer.generation.cut(Interrupt.CLIENT_GONE)
        else:
            reader.on_open(answer.generation, self.id)
            self.sim.on_open(reader)
        try:
            while not answer.feed.is_ended:
                for event in await answer.feed.next():
                    if is_connected():
                        reader.on_event(event)
        except Interrupted as exc:
            if exc.interrupt is Interrupt.NO_RESULT and is_connected():
                self.sim.on_no_result(reader)
        if answer.feed.error is not None and is_connected():
            reader.on_error(answer.feed.error)
        answer.close(200, "http")

    async def _open(self, reader: Reader) -> Answer:
        ask = reader.ask
        caller = Caller(deadline_s=ask.deadline_s, grace_s=ask.grace_s, idempotency_key=ask.key)
        if not reader.group_id:
            return await self._inference.start(Surface.GENERATE, dict(reader.body), caller)
        event_id = parse_event_id(reader.event_id) if reader.event_id else None
        return await self._inference.resume(reader.group_id, event_id, caller, stream=True)

    def cut_off(self, reader: Reader) -> None:
        """Its client closed the connection."""
        generation = reader.generation
        if generation is not None:
            self.loop.call_soon(generation.cut, Interrupt.CLIENT_GONE)
