"""`jetflock admin`: pauses, drains and asks a running service, over NATS."""

# No `from __future__ import annotations` here: cyclopts reads the types of the commands.

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec
from cyclopts import Parameter

from jetflock.admin_plane.admin_config import AdminConfig
from jetflock.command_line.output import print_json, print_table
from jetflock.running.existing_cluster import existing_cluster
from jetflock.running.running_service import ServiceConfig
from shared.admin.control import (
    Continue,
    ControlReply,
    ControlRequest,
    Drain,
    FlushCache,
    GetStats,
    Kill,
    Pause,
    PauseMode,
    Sleep,
)
from shared.admin.control_plane import ControlPlane, Target, worker_facts
from shared.admin.lora_orders import LoraOrders
from shared.admin.rolling_update import RollingUpdate, WeightsOrder
from shared.admin.sleep_orders import SleepOrders
from shared.cli.program import Program
from shared.cluster import Cluster
from shared.config import FLAT, ClusterConfig
from shared.errors import BrokerError, ConfigError, JetflockError
from shared.liveness.living_levels import LevelOrder, level_facts
from shared.snapshot.cluster_reader import ClusterReader

_NAME = "jetflock admin"
_SUMMARY = """\
Orders over NATS to all workers, unless --model or --worker (once or more often) names some."""

_Config = Annotated[ServiceConfig, FLAT]
_DEFAULTS = ServiceConfig()
_Model = Annotated[str | None, Parameter(name="--model")]
_Workers = Annotated[tuple[str, ...], Parameter(name="--worker", negative="")]
_AsJson = Annotated[bool, Parameter(name="--json", negative="")]

_LEVEL_COLUMNS = ("id", "role", "host", "knows level")
_WORKER_COLUMNS = ("worker", "model", "revision", "state", "running", "waiting", "host", "pid")


class NotAll(JetflockError):
    """Some workers did not do it; their answers are printed."""

    exit_status = 1


def workers(*, model: _Model = None, as_json: _AsJson = False, config: _Config = _DEFAULTS) -> None:
    """The living workers, and how they are."""

    async def show(plane: ControlPlane) -> None:
        cards = await plane.workers(Target(model))
        if as_json:
            print_json([worker_facts(card) for card in cards])
        else:
            rows = [[str(worker_facts(card)[key]) for key in _WORKER_COLUMNS] for card in cards]
            print_table(_WORKER_COLUMNS, rows, "no worker lives")

    _run(config, show)


def stats(*, model: _Model = None, worker: _Workers = (), config: _Config = _DEFAULTS) -> None:
    """Queues and workers, as JSON: each worker is asked."""

    async def show(cluster: Cluster) -> None:
        replies = await ControlPlane(cluster, _NAME).send(Target(model, worker), GetStats())
        seen = await ClusterReader(cluster).snapshot()
        queues = (seen if model is None else seen.of_model(model)).queues
        print_json(
            {
                "queues": [msgspec.to_builtins(depth) for depth in queues],
                "workers": [msgspec.to_builtins(reply) for reply in replies],
            }
        )

    asyncio.run(_with_cluster(config, show))


def pause(
    *,
    mode: PauseMode = PauseMode.FINISH,
    freeze_s: float = Pause().freeze_s,
    model: _Model = None,
    worker: _Workers = (),
    config: _Config = _DEFAULTS,
) -> None:
    """Take no more requests: they wait in the queue, their clients with them.

    What runs goes on to its end, or stands still (--mode freeze), for FREEZE_S seconds at most:
    then it is handed over to other workers.
    """
    _send(config, Target(model, worker), Pause(mode, freeze_s))


def continue_(*, model: _Model = None, worker: _Workers = (), config: _Config = _DEFAULTS) -> None:
    """Undo a pause."""
    _send(config, Target(model, worker), Continue())


def sleep(
    *,
    level: int = Sleep().level,
    finish_timeout_s: float = Sleep().finish_timeout_s,
    model: _Model = None,
    worker: _Workers = (),
    config: _Config = _DEFAULTS,
) -> None:
    """Give memory back, and take no more requests until woken: they wait in the queue.

    LEVEL 1 is the memory of cached keys and values, 2 that of the weights, too. What runs may
    finish for FINISH_TIMEOUT_S, then it is handed over: it goes on elsewhere, or after waking.
    """
    order = Sleep(level, finish_timeout_s)

    async def put_to_sleep(plane: ControlPlane) -> None:
        _print_replies(await SleepOrders(plane).sleep(Target(model, worker), order))

    _run(config, put_to_sleep)


def wake_up(*, model: _Model = None, worker: _Workers = (), config: _Config = _DEFAULTS) -> None:
    """Wake workers that sleep; prints when they have loaded."""

    async def wake(plane: ControlPlane) -> None:
        _print_replies(await SleepOrders(plane).wake_up(Target(model, worker)))

    _run(config, wake)


def drain(worker: str, /, *, timeout_s: float | None = None, config: _Config = _DEFAULTS) -> None:
    """Take a worker away, as a SIGTERM does: it hands over what it has, and exits.

    Requests get TIMEOUT_S to finish first; by default the worker's own --shutdown-timeout-s.
    `jetflock serve` starts another worker in its place.
    """
    _send(config, Target(None, (worker,)), Drain(timeout_s))


def kill(worker: str, /, *, config: _Config = _DEFAULTS) -> None:
    """Kill a worker, as `kill -9` on its machine does, to see that nothing is lost.

    Its streams go on elsewhere. `jetflock serve` starts another worker in its place.
    """
    _send(config, Target(None, (worker,)), Kill())


def flush(*, model: _Model = None, worker: _Workers = (), config: _Config = _DEFAULTS) -> None:
    """Empty the prefix caches."""
    _send(config, Target(model, worker), FlushCache())


def update_weights(
    model_path: str,
    /,
    *,
    finish_timeout_s: float = 600.0,
    load_timeout_s: float = 1800.0,
    max_unavailable: int = 1,
    model: _Model = None,
    worker: _Workers = (),
    config: _Config = _DEFAULTS,
) -> None:
    """Serve the checkpoint at MODEL_PATH, a folder that all workers see, in place of the one now.

    Worker after worker (MAX_UNAVAILABLE at a time) takes no more requests, lets those that run
    finish for FINISH_TIMEOUT_S, hands over the rest, and loads it. Run it again to continue what
    was cut. With --worker only these, until they are restarted.
    """
    order = WeightsOrder(
        model_path, model, worker, finish_timeout_s, load_timeout_s, max_unavailable
    )

    async def update(cluster: Cluster) -> None:
        plane = ControlPlane(cluster, _NAME)
        result = await RollingUpdate(cluster, plane, order, _say).run()
        for name in result.had_it:
            _say(f"{name}: has had revision {result.revision} before")
        if not result.ok:
            raise NotAll(f"{len(result.failed)} workers keep their old weights")

    asyncio.run(_with_cluster(config, update))


def load_lora(
    name: str, path: str, /, *, model: _Model = None, config: _Config = _DEFAULTS
) -> None:
    """Serve the LoRA adapter at PATH, a folder on this machine, as a model called NAME.

    MODEL is the one it is for, if there are several. Workers fetch the files over NATS.
    """

    async def load(cluster: Cluster) -> None:
        result = await LoraOrders(cluster, ControlPlane(cluster, _NAME)).load(name, path, model)
        _say(f"{name}: revision {result.revision}, on {result.model}")
        _print_lora_replies(result.workers)

    asyncio.run(_with_cluster(config, load))


def unload_lora(name: str, /, *, model: _Model = None, config: _Config = _DEFAULTS) -> None:
    """Serve a LoRA adapter no more: requests that run finish, those that wait end with an error."""

    async def unload(cluster: Cluster) -> None:
        result = await LoraOrders(cluster, ControlPlane(cluster, _NAME)).unload(name, model)
        _print_lora_replies(result.workers)

    asyncio.run(_with_cluster(config, unload))


def _print_lora_replies(replies: Sequence[ControlReply]) -> None:
    """A worker that has not answered does it when it is there again."""
    for reply in replies:
        _say(f"{reply.worker}\t{'ok' if reply.ok else f'later: {reply.message}'}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def abort(
    rid: str | None = None,
    /,
    *,
    all_of: Annotated[str | None, Parameter(name="--all-of")] = None,
    config: _Config = _DEFAULTS,
) -> None:
    """End a request, queued or running, or --all-of a model; prints how many had not ended."""
    if (rid is None) == (all_of is None):
        raise ConfigError("give the id of a request, or --all-of MODEL")

    async def end(plane: ControlPlane) -> None:
        num = await (plane.abort(rid) if rid is not None else plane.abort_all(str(all_of)))
        sys.stdout.write(f"{num}\n")

    _run(config, end)


def erase(
    *,
    request: Annotated[str | None, Parameter(name="--request")] = None,
    tenant: Annotated[str | None, Parameter(name="--tenant")] = None,
    config: _Config = _DEFAULTS,
) -> None:
    """Erase all that is stored of a REQUEST, or of a TENANT by its id: for good.

    What runs is ended first. Prints what there was, and until when (gone_by, unix seconds; null:
    nothing is left) frames of the token log stay that other requests have a part in.
    """
    from frontend.stored.erasing.request_eraser import RequestEraser
    from frontend.stored.erasing.tenant_eraser import TenantEraser

    async def work(cluster: Cluster) -> None:
        if request is not None:
            print_json(
                msgspec.to_builtins(await RequestEraser(cluster, _NAME).erase(request, None))
            )
        else:
            print_json(msgspec.to_builtins(await TenantEraser(cluster, _NAME).erase(str(tenant))))

    if (request is None) == (tenant is None):
        raise ConfigError("give --request ID or --tenant ID")
    asyncio.run(_with_cluster(config, work))


def level(
    *,
    to: int | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
    hold: bool | None = None,
    as_json: _AsJson = False,
    config: _Config = _DEFAULTS,
) -> None:
    """The feature level in force, and what each role alive knows.

    Roles raise it when none that is alive knows less. With --hold they do not, so that the earlier
    version can be brought back; --no-hold undoes it. --to N raises it now, --force also where a
    role knows less, which then leaves as at a SIGTERM. It never goes down.
    """
    order = LevelOrder(to, hold, force)

    async def work(cluster: Cluster) -> None:
        report = await order.carry_out(cluster)
        if as_json:
            print_json(level_facts(report))
            return
        _say(f"level {report.level}{', held' if report.is_held else ''}")
        rows = [[role.id, role.role, role.host, str(role.level)] for role in report.roles]
        print_table(_LEVEL_COLUMNS, rows, "no role lives")

    asyncio.run(_with_cluster(config, work))


def serve(*, config: Annotated[AdminConfig, FLAT] = AdminConfig()) -> None:  # noqa: B008
    """Serve the same over HTTP, on a port that is not the public one."""
    from jetflock.admin_plane.admin_app import run_admin_server

    run_admin_server(config)


_COMMANDS: dict[str, Callable[..., None]] = {
    "workers": workers,
    "stats": stats,
    "pause": pause,
    "continue": continue_,
    "sleep": sleep,
    "wake-up": wake_up,
    "drain": drain,
    "kill": kill,
    "flush": flush,
    "abort": abort,
    "erase": erase,
    "level": level,
    "update-weights": update_weights,
    "load-lora": load_lora,
    "unload-lora": unload_lora,
    "serve": serve,
}


def _send(config: ClusterConfig, target: Target, request: ControlRequest) -> None:
    async def send(plane: ControlPlane) -> None:
        _print_replies(await plane.send(target, request))

    _run(config, send)


def _print_replies(replies: Sequence[ControlReply]) -> None:
    """Raises NotAll."""
    for reply in replies:
        sys.stdout.write(f"{reply.worker}\t{'ok' if reply.ok else reply.message}\n")
    num_failed = sum(not reply.ok for reply in replies)
    if num_failed:
        raise NotAll(f"{num_failed} of {len(replies)} workers did not do it")
    if not replies:
        raise NotAll("no worker lives")


def _run(config: ClusterConfig, work: Callable[[ControlPlane], Awaitable[None]]) -> None:
    asyncio.run(_with_cluster(config, lambda cluster: work(ControlPlane(cluster, _NAME))))


async def _with_cluster(config: ClusterConfig, work: Callable[[Cluster], Awaitable[None]]) -> None:
    async with existing_cluster(config, _NAME) as cluster:
        try:
            await work(cluster)
        except BrokerError as exc:
            raise ConfigError(f"NATS at {cluster.config.nats_url} refused: {exc}") from exc


PROGRAM = Program(name=_NAME, summary=_SUMMARY, commands=_COMMANDS)

if __name__ == "__main__":
    PROGRAM.run()
