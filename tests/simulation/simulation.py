"""One schedule from its beginning until all is quiet, and the verdict on it."""

from __future__ import annotations

import gc
import random
import sys
import warnings
from asyncio import events
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import structlog

from detok import floor_keeper
from detok.tokenizer_cache import TokenizerCache
from shared.errors import NotFound, RequestError, ResumeConflict
from shared.protocol.bills import BILL_LEVEL
from shared.protocol.codec import decode, encode
from shared.protocol.request import FEATURE_LEVEL, GenerateRequest
from shared.protocol.role_cards import LevelRecord
from shared.subjects import LEVEL_KEY
from shared.token_log.visible_text import TokenizerDecoder
from tests.simulation.broker import Broker
from tests.simulation.connection import Connection
from tests.simulation.house import house
from tests.simulation.invariants import Judge
from tests.simulation.nodes import DetokNode, FrontendNode, Node, WorkerNode
from tests.simulation.process_loop import ProcessLoop
from tests.simulation.reader import Reader, ReaderState
from tests.simulation.schedule import Ask, Fault, FaultKind, Schedule, draw_schedule
from tests.simulation.scripted_engine import POISON_TOKEN, TokenRecord
from tests.simulation.stored_stream import StoredMsg
from tests.simulation.world import World
from worker.affinity import pool_roles
from worker.held import held_request
from worker.intake import decode_hand_over
from worker.runs import token_log

_BOOT_S = 0.6
_LOOK_S = 0.25
_HEARD_S = (0.002, 0.01, 0.05)
_LIMIT_S = 120.0  # of simulated time: by then everything that was accepted has ended
_LONGEST_FAULT_S = 12.0
_BURIED_AT_ONCE = 20
_RESUME_S = 3.0  # at most, until a client that was cut off asks again


@dataclass(slots=True)
class Verdict:
    """What came out of one schedule."""

    seed: int
    schedule: Schedule
    violations: list[str]
    trace: list[str]
    simulated_s: float
    faults: Counter[str]
    errors: list[BaseException] = field(default_factory=list)
    num_accepted: int = 0
    num_messages: int = 0
    num_claims: int = 0

    @property
    def is_good(self) -> bool:
        return not self.violations

    def report(self) -> str:
        lines = [f"seed {self.seed}", self.schedule.describe(), *self.trace, *self.violations]
        lines.append(f"alone, with a trace: python -m tests.simulation --seed {self.seed} --trace")
        return "\n".join(lines)


def run_seed(seed: int, *, trace: bool = False) -> Verdict:
    """Deterministic: the same seed gives the same verdict."""
    return next(run_seeds([seed], trace=trace))


def run_seeds(seeds: Iterable[int], *, trace: bool = False) -> Iterator[Verdict]:
    """One after the other."""
    with _graveyard() as bury:
        for seed in seeds:
            yield Simulation(seed, trace=trace).run()
            bury()


@contextmanager
def _graveyard() -> Iterator[Callable[[], None]]:
    """Processes are left as they stood, with coroutines that nobody will ever resume."""
    num_waiting = 0

    def bury() -> None:
        nonlocal num_waiting
        num_waiting += 1
        if num_waiting == _BURIED_AT_ONCE:
            num_waiting = 0
            gc.collect()

    with unheard_ends():
        try:
            yield bury
        finally:
            gc.collect()


@contextmanager
def unheard_ends() -> Iterator[None]:
    """Python complains of each coroutine that it collects: only when it is told to, and unheard."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        with patch.object(sys, "unraisablehook", lambda _: None), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class Simulation:
    """Holds the processes and the clients of one schedule."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self._seed = seed
        self.world = World(seed)
        self.world.trace = [] if trace else None
        self.rng = random.Random(self.world.rng.getrandbits(64))
        self.schedule = draw_schedule(self.rng, random.Random(f"roles {seed}"))
        self.house = house(self.schedule.num_partitions)
        self.broker = Broker(self.world)
        self.level = FEATURE_LEVEL if seed % 2 else 1  # in force
        self.record = TokenRecord()
        self.violations: list[str] = []
        self.errors: list[BaseException] = []
        self.nodes: list[Node] = []
        self._buried: list[Node] = []
        self.readers: list[Reader] = []
        self._requests: dict[str, GenerateRequest] = {}
        self._due: list[Fault] = []
        self._faults: Counter[str] = Counter()
        self._has_frontend_trouble = False
        self._first_message = 0
        self._num_busy_faults = 0
        self._on_next_claim: list[Callable[[], None]] = []

    def run(self) -> Verdict:
        with _quiet(self.world), self.world.as_time(), _scaled_down(self.rng.random() < 0.5):
            self._build()
            self._play()
            self._judge_all()
        return Verdict(
            self._seed,
            self.schedule,
            self.violations,
            self.world.trace or [],
            self.world.now - 100.0,
            self._faults,
            self.errors,
            len(self._requests),
            self.broker.num_messages,
            self._num_claims,
        )

    # Building

    def _build(self) -> None:
        for config in self.house.streams:
            self.broker.create_stream(config)
        subjects = self.house.subjects
        for config in self.house.consumers:
            self.broker.create_durable(subjects.requests_stream, config)
        streams = self.broker.streams
        requests = streams[subjects.requests_stream]
        self._judge = Judge(
            subjects,
            streams[subjects.tokens_stream],
            streams[subjects.results_stream],
            streams[subjects.bills_stream],
            self.record,
        )
        requests.on_stored.append(self._on_accepted)
        requests.on_removed = self._on_removed
        streams[subjects.tokens_stream].on_stored.append(self._on_logged)
        self._queue = requests
        level = encode(LevelRecord(self.level))
        meta = subjects.meta_bucket
        streams[f"KV_{meta}"].store(f"$KV.{meta}.{LEVEL_KEY}", level, None, self.world.now)
        streams[f"KV_{subjects.owners_bucket}"].on_stored.append(self._on_owners_written)
        self._supervisor = Connection(
            self.world,
            self.broker,
            ProcessLoop(self.world, "supervisor"),  # type: ignore[abstract]
            "supervisor",
            self.schedule.weather,
        )
        for _ in range(self.schedule.num_detoks):
            self.nodes.append(DetokNode(self))
        for _ in range(self.schedule.num_frontends):
            self.nodes.append(FrontendNode(self))
        for role in self.schedule.roles:
            self.nodes.append(WorkerNode(self, role))

    def _on_accepted(self, msg: StoredMsg) -> None:
        request = decode(GenerateRequest, msg.data)
        self._requests[request.rid] = request
        self.world.note("queue", f"stores {request.rid[:8]}")

    def _on_removed(self, msg: StoredMsg) -> None:
        request = decode(GenerateRequest, msg.data)
        self.world.note("queue", f"forgets {request.rid[:8]}")
        self.violations += self._judge.check_removed(request)

    # Playing

    def _play(self) -> None:
        world = self.world
        world.run_until(world.now + _BOOT_S)
        begin = world.now
        self._first_message = self.broker.num_messages
        for idx, ask in enumerate(self.schedule.asks):
            reader = Reader(idx, ask, self._body(idx, ask))
            self.readers.append(reader)
            world.at(begin + ask.at_s, self._connect, reader)
        for fault in self.schedule.faults:
            if fault.at_message:
                self._due.append(fault)
            else:
                world.at(begin + fault.at_s, self._strike, fault)
        self._due.sort(key=lambda fault: fault.at_message)
        if self._due:
            self._watch_messages()
        limit = begin + _LIMIT_S
        while world.now < limit:
            world.run_until(world.now + _LOOK_S)
            self._check_leases()
            if self._is_quiet():
                return

    def _on_owners_written(self, _: StoredMsg) -> None:
        """Who wrote believes something else as soon as it hears of it."""
        for delay_s in _HEARD_S:
            self.world.after(delay_s, self._check_leases)

    def _check_leases(self) -> None:
        """At no moment two detokenizers believe that a partition is theirs."""
        owned: list[int] = []
        for node in self.nodes:
            if isinstance(node, DetokNode):
                owned += [tenure.partition for tenure in node.tenures if tenure.is_valid]
        if len(set(owned)) == len(owned):
            return
        for partition, num_owners in Counter(owned).items():
            if num_owners > 1:
                self.violations.append(f"L1: {num_owners} own partition {partition}")

    def _watch_messages(self) -> None:
        """Faults that wait for the n-th message strike right behind it."""
        broker = self.broker
        receive = broker.receive

        def watched(*args: Any) -> None:
            receive(*args)
            while self._due and (
                broker.num_messages - self._first_message >= self._due[0].at_message
            ):
                self.world.at(self.world.now, self._strike, self._due.pop(0))

        broker.receive = watched  # type: ignore[method-assign, assignment]

    def _body(self, idx: int, ask: Ask) -> dict[str, Any]:
        first = POISON_TOKEN if ask.is_poison else 20
        last = 1 if ask.key else 1 + idx
        prompt = [first, *([5] * (ask.num_prompt_tokens - 2)), last]
        return {"prompt": prompt, "max_tokens": ask.max_tokens, "stop": ask.stop, "stream": True}

    def _is_quiet(self) -> bool:
        if self._num_busy_faults or not all(reader.is_over for reader in self.readers):
            return False
        if self._queue.messages:
            return False
        if any(self._judge.done(rid) is None for rid in self._requests):
            return False
        if not self._has_bills:
            return True
        folds = self._judge.folds()  # of requests that were not queued, too, but ended
        over = {rid for rid, fold in folds.items() if fold.finish is not None}
        return over <= {bill.rid for bill in self._judge.bills()}

    @property
    def _has_bills(self) -> bool:
        return self.level >= BILL_LEVEL

    # Processes

    def _living(self, kind: type[Node]) -> list[Any]:
        return [
            node
            for node in self.nodes
            if isinstance(node, kind) and node.is_running and not node.is_leaving
        ]

    def _pick(self, kind: type[Node], draw: float) -> Any:
        living = self._living(kind)
        return living[int(draw * len(living))] if living else None

    def _replace(self, node: Node, delay_s: float) -> None:
        self._num_busy_faults += 1
        self.world.after(delay_s, self._start_another, node)

    def _start_another(self, like: Node) -> None:
        if self.broker.is_down:  # nobody gets further than `connect`
            self.world.after(0.2, self._start_another, like)
            return
        self._num_busy_faults -= 1
        self.nodes.append(like.another())
        self.world.note("world", f"starts {self.nodes[-1].id}")

    def on_exit(self, node: Node) -> None:
        """A process has ended by itself."""
        self.world.note(node.id, "exits")
        self._bury(node)
        if not node.is_leaving:
            self._replace(node, 0.2)

    def _kill(self, node: Node) -> None:
        self.world.note("world", f"kills {node.id}")
        node.kill()
        self._bury(node)

    def _bury(self, node: Node) -> None:
        if node in self.nodes:
            self.nodes.remove(node)
            self._buried.append(node)  # its coroutines are not closed before the end
        if isinstance(node, FrontendNode):
            self._has_frontend_trouble = True
            for reader in self.readers:
                if reader.frontend == node.id and not reader.is_over:
                    self._cut_off(reader)

    def on_poison(self, node: WorkerNode) -> None:
        """An engine has met a request that kills it: sometimes the whole worker goes too."""
        if self.rng.random() < 0.5:
            assert node.engine is not None
            node.engine.die()
            return
        self._tell_death(node)
        self._kill(node)
        self._replace(node, 0.05 + self.rng.random() * 0.3)

    def _tell_death(self, node: Node) -> None:
        payload = node.id.encode()
        subject = self.house.subjects.worker_died
        if self.broker.is_down:
            return
        self.world.after(0.005, self.broker.receive, subject, "", payload, None)

    # Clients

    def _connect(self, reader: Reader) -> None:
        if reader.is_over:
            return
        frontends = self._living(FrontendNode)
        if not frontends:
            self.world.after(0.3, self._connect, reader)
            return
        node = frontends[int(self.rng.random() * len(frontends))]
        if not hasattr(node, "_tasks"):  # it is only starting
            self.world.after(0.05, self._connect, reader)
            return
        self.world.note(reader.name, f"asks {node.id} {reader.event_id}")
        reader.frontend = node.id
        node.serve(reader)

    def on_open(self, reader: Reader) -> None:
        self.world.note(reader.name, f"reads {reader.group_id[:8]}")

    def on_refused(self, reader: Reader, error: RequestError) -> None:
        """The frontend has answered with an error."""
        self.world.note(reader.name, f"is refused: {error!r}")
        if isinstance(error, NotFound | ResumeConflict):
            self.violations.append(f"I8: {reader.name} cannot resume: {error}")
        if reader.is_over:
            return
        if reader.group_id or reader.ask.key:
            reader.state = ReaderState.AWAY
            self.world.after(0.5, self._connect, reader)
        else:
            reader.error = error
            reader.state = ReaderState.REFUSED

    def on_no_result(self, reader: Reader) -> None:
        """Long after the deadline: a frontend that was cut off may say so; the client resumes."""
        if not self._has_frontend_trouble:
            self.violations.append(f"I11: {reader.name} was told no result")
        self._cut_off(reader)

    def _cut_off(self, reader: Reader) -> None:
        """Its connection broke: it resumes, if it can."""
        reader.generation = None
        reader.num_connections += 1
        reader.was_cut_off = True
        if reader.group_id or reader.ask.key:
            reader.state = ReaderState.AWAY
            self.world.after(self.rng.random() * _RESUME_S, self._connect, reader)
        else:
            reader.state = ReaderState.REFUSED  # it does not know whether it was accepted

    # Faults

    def _strike(self, fault: Fault) -> None:
        victim = self._strike_at(fault)
        if victim is None:
            return
        self._faults[fault.kind.value] += 1
        self.world.note("world", f"{fault.kind.value}: {victim} ({fault.duration_s:.2f} s)")

    def _strike_at(self, fault: Fault) -> str | None:
        """Who it was; None when nobody was there."""
        match fault.kind:
            case FaultKind.KILL_WORKER | FaultKind.KILL_WORKER_TOLD:
                return self._kill_one(
                    WorkerNode, fault, told=fault.kind is FaultKind.KILL_WORKER_TOLD
                )
            case FaultKind.KILL_DETOK:
                return self._kill_one(DetokNode, fault)
            case FaultKind.KILL_FRONTEND:
                return self._kill_one(FrontendNode, fault)
            case FaultKind.DRAIN_WORKER:
                return self._leave_one(WorkerNode, fault)
            case FaultKind.STOP_DETOK:
                return self._leave_one(DetokNode, fault)
            case FaultKind.PAUSE_WORKER:
                return self._pause_one(WorkerNode, fault)
            case FaultKind.PAUSE_DETOK:
                return self._pause_one(DetokNode, fault)
            case FaultKind.PAUSE_FRONTEND:
                self._has_frontend_trouble = True
                return self._pause_one(FrontendNode, fault)
            case FaultKind.KILL_ENGINE | FaultKind.HANG_ENGINE:
                return self._hurt_engine(fault)
            case FaultKind.RESET_CONNECTION | FaultKind.CUT_NETWORK | FaultKind.LOSE_MESSAGES:
                return self._hurt_connection(Node, fault)
            case FaultKind.CUT_WORKER | FaultKind.LOSE_WORKERS:
                return self._hurt_connection(WorkerNode, fault)
            case FaultKind.RESTART_BROKER:
                return self._restart_broker(fault)
            case FaultKind.CLIENT_GONE | FaultKind.CLIENT_RESUMES:
                return self._move_client(fault)

    def _kill_one(self, kind: type[Node], fault: Fault, *, told: bool = False) -> str | None:
        node = self._pick(kind, fault.draw)
        if node is None:
            return None
        if told:
            self._tell_death(node)
        self._kill(node)
        self._replace(node, min(fault.duration_s, 3.0))
        return str(node.id)

    def _leave_one(self, kind: type[Node], fault: Fault) -> str | None:
        """One that is stopped hears of it when it wakes up; those in trouble are asked first."""
        living = [node for node in self.nodes if isinstance(node, kind) and not node.is_leaving]
        living = [node for node in living if node.is_in_trouble] or living
        if not living:
            return None
        node = living[int(fault.draw * len(living))]
        node.leave()
        self._replace(node, min(fault.duration_s, 3.0))
        return str(node.id)

    def _pause_one(self, kind: type[Node], fault: Fault) -> str | None:
        node = self._pick(kind, fault.draw)
        if node is None:
            return None
        node.loop.stop_process()
        self._at_end(fault, lambda: self._wake(node))
        return str(node.id)

    def _at_end(self, fault: Fault, end: Callable[[], None]) -> None:
        """When the time of a fault is over, or somebody has claimed in spite of it."""
        self._num_busy_faults += 1
        is_over = False

        def finish() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._num_busy_faults -= 1
                end()

        if fault.until_claimed:
            self.world.after(_LONGEST_FAULT_S, finish)
            self._on_next_claim.append(lambda: self.world.after(fault.draw * 1e3 % 1 * 0.4, finish))
        else:
            self.world.after(fault.duration_s, finish)

    def _on_logged(self, msg: StoredMsg) -> None:
        if self._on_next_claim and ".own." in msg.subject:
            waiting, self._on_next_claim = self._on_next_claim, []
            for wake in waiting:
                wake()

    def _wake(self, node: Node) -> None:
        self.world.note("world", f"wakes {node.id}")
        node.loop.wake_process()

    def _hurt_engine(self, fault: Fault) -> str | None:
        node = self._pick(WorkerNode, fault.draw)
        if node is None or node.engine is None:
            return None
        if fault.kind is FaultKind.KILL_ENGINE:
            node.engine.die()
        else:
            node.engine.hang()
            self._num_busy_faults += 1
            self.world.after(3.0 + fault.duration_s, self._unhang, node)
        return str(node.id)

    def _unhang(self, node: WorkerNode) -> None:
        """Nobody looks after a hung engine but its supervisor, which kills the worker."""
        self._num_busy_faults -= 1
        if node.is_alive:
            self._tell_death(node)
            self._kill(node)
            self._replace(node, 0.2)

    def _hurt_connection(self, kind: type[Node], fault: Fault) -> str | None:
        node = self._pick(kind, fault.draw)
        if node is None:
            return None
        self._has_frontend_trouble |= isinstance(node, FrontendNode)
        connection: Connection = node.connection
        if fault.kind is FaultKind.RESET_CONNECTION:
            connection.break_off()
        elif fault.kind in (FaultKind.LOSE_MESSAGES, FaultKind.LOSE_WORKERS):
            connection.lose(0.2)
            self._at_end(fault, lambda: connection.lose(0.0))
        elif connection.cut():
            breaks = fault.draw * 1e4 % 1 < 0.5
            self._at_end(fault, lambda: connection.heal(breaks=breaks))
        return str(node.id)

    def _restart_broker(self, fault: Fault) -> str | None:
        if self.broker.is_down:
            return None
        self._has_frontend_trouble = True
        self.broker.go_down()
        for node in self.nodes:
            node.connection.break_off()
        self._num_busy_faults += 1
        forgets = fault.draw < 0.5
        self.world.after(min(fault.duration_s, 3.0), self._broker_is_back, forgets)
        return "it forgets deliveries" if forgets else "it remembers deliveries"

    def _broker_is_back(self, forgets: bool) -> None:
        self._num_busy_faults -= 1
        self.broker.come_up(forgets=forgets)

    def _move_client(self, fault: Fault) -> str | None:
        reading = [reader for reader in self.readers if reader.state is ReaderState.READING]
        if not reading:
            return None
        reader = reading[int(fault.draw * len(reading))]
        for node in self.nodes:
            if isinstance(node, FrontendNode) and node.id == reader.frontend:
                node.cut_off(reader)
        if fault.kind is FaultKind.CLIENT_GONE:
            reader.state = ReaderState.GONE
        else:
            self._cut_off(reader)
        return reader.name

    # Judging

    def _judge_all(self) -> None:
        folds = self._judge.folds()
        self._num_claims = sum(fold.num_claims for fold in folds.values())
        for reader in self.readers:
            if not reader.is_over:
                self.violations.append(f"I11: {reader.name} is still {reader.state.value}")
        if self._queue.messages:
            self.violations.append(f"I11: the queue still holds {len(self._queue.messages)}")
        for rid, request in self._requests.items():
            self.violations += self._judge.check_request(request, folds.get(rid))
        if self._has_bills:
            self.violations += self._judge.check_bills(folds)
        for reader in self.readers:
            asked = self._requests.get(reader.group_id)
            fold = folds.get(reader.group_id)
            if reader.group_id and asked is None:
                self.violations.append(f"I7: {reader.name} was accepted, and never stored")
            elif asked is not None and fold is not None:
                decoder = TokenizerDecoder(self.house.tokenizer, asked.text)
                self.violations += self._judge.check_reader(reader, asked, fold, decoder)
            self._judge_error(reader)

    def _judge_error(self, reader: Reader) -> None:
        if reader.state is ReaderState.FAILED and reader.error is not None:
            code = reader.error.code
            has_reason = {
                "deadline_exceeded": reader.ask.deadline_s < 60.0,
                "cancelled": self._has_frontend_trouble or reader.was_cut_off or reader.ask.key,
                "poison": True,
            }
            if not has_reason.get(code or "", False):
                self.violations.append(f"I8: {reader.name} was told {reader.error!r}")


@contextmanager
def _quiet(world: World) -> Iterator[None]:
    """Logs go into the trace, and tokenizers come from next door."""
    config = structlog.get_config()

    def keep(_: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        loop = events._get_running_loop()
        fields = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        world.note(getattr(loop, "name", "?"), f"{level} {event['event']} {fields}")
        raise structlog.DropEvent

    level = 10 if world.trace is not None else 50
    structlog.configure(
        processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(level)
    )
    try:
        with patch.object(TokenizerCache, "_fetch", _fetch):
            yield
    finally:
        structlog.configure(**config)


@contextmanager
def _scaled_down(is_small: bool) -> Iterator[None]:
    """Entries, frames and restatements of a few tokens: else short requests would never have
    several. Floors are written and roles looked at more often, too, and the last few tokens are
    handed over as many are.
    """
    with ExitStack() as patches:
        patches.enter_context(patch.object(floor_keeper, "_INTERVAL_S", 0.1))
        patches.enter_context(patch.object(decode_hand_over, "_MIN_LEFT", 0))
        patches.enter_context(patch.object(pool_roles, "_LOOK_S", 0.1))
        if is_small:
            patches.enter_context(patch.object(held_request, "_RESTATE_TOKENS", 4))
            patches.enter_context(patch.object(token_log, "MAX_ENTRY_TOKENS", 3))
            patches.enter_context(patch.object(token_log, "_MAX_FRAME_TOKENS", 4))
        yield


async def _fetch(_: TokenizerCache, __: str) -> Any:
    return house(1).tokenizer
