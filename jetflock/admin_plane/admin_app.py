"""The admin plane over HTTP, on a port of its own. Paths are SGLang's, where it has one."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from frontend.http.error_response import error_response, json_response
from frontend.http.http_request import read_body
from frontend.http.listener import bind, http_server
from jetflock.admin_plane.admin_config import AdminConfig, AdminKey
from jetflock.admin_plane.page_origins import NO_PAGES, PageOrigins
from jetflock.running.existing_cluster import existing_cluster
from shared.admin.control import (
    MAX_PROFILE_S,
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
    StartProfile,
    StopProfile,
)
from shared.admin.control_plane import ControlPlane, Target, worker_facts
from shared.admin.lora_orders import LoraOrders
from shared.admin.rolling_update import RollingUpdate, WeightsOrder
from shared.admin.sleep_orders import SleepOrders
from shared.cluster import Cluster
from shared.errors import (
    BrokerError,
    ConfigError,
    Forbidden,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RequestError,
    ServiceUnavailable,
)
from shared.snapshot.cluster_reader import ClusterReader
from shared.status.http_host import HostRule
from shared.telemetry.log import get_logger, setup_logging

_MAX_BODY_BYTES = 1 << 20


T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]

log = get_logger(__name__)


class TargetBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom an order is for: all workers, those of a model, or these."""

    model: str | None = None
    workers: tuple[str, ...] = ()

    @property
    def target(self) -> Target:
        return Target(self.model, self.workers)


class PauseBody(TargetBody, frozen=True, forbid_unknown_fields=True):
    """POST /pause_generation."""

    mode: PauseMode = PauseMode.FINISH
    freeze_s: float = Pause().freeze_s


class ProfileBody(TargetBody, frozen=True, forbid_unknown_fields=True):
    """POST /start_profile."""

    max_s: float = StartProfile().max_s


class SleepQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /sleep: in the query, as in vLLM; for whom is in the body."""

    level: int = Sleep().level
    mode: Literal["keep", "wait"] = "keep"  # what runs: goes to other workers, or may finish
    finish_timeout_s: float = 600.0  # with `wait`

    @property
    def order(self) -> Sleep:
        return Sleep(self.level, self.finish_timeout_s if self.mode == "wait" else 0.0)


class WakeUpQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /wake_up."""


class DrainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /drain_worker."""

    worker: str
    timeout_s: float | None = None


class KillBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /kill_worker."""

    worker: str


class AbortBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /abort_request: one request, or all of a model."""

    rid: str | None = None
    abort_all: bool = False
    model: str | None = None


class LoadLoraBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter."""

    lora_name: str
    lora_path: str  # a folder on this machine
    model: str | None = None  # that it is for


class UnloadLoraBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter."""

    lora_name: str
    model: str | None = None


class AdminApp:
    """The ASGI application. Every path but /health needs the key, if there is one.

    Of pages in a browser only those of `page_origins` may ask, and they need it too.
    """

    def __init__(
        self,
        cluster: Cluster,
        key: AdminKey,
        page_origins: PageOrigins = NO_PAGES,
        hosts: HostRule | None = None,
    ) -> None:
        """`hosts`: by which names it may be called, where it asks for no key."""
        self._cluster = cluster
        self._key = key
        self._page_origins = page_origins
        self._hosts = hosts
        self._plane = ControlPlane(cluster, "admin")
        self._reader = ClusterReader(cluster)
        self._router = Router(self._routes(), redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # starlette then raises for unknown paths and methods
        request = Request(scope)
        try:
            if self._page_origins.is_preflight(request):
                await self._page_origins.preflight_answer(request)(scope, receive, send)
                return
            send = self._page_origins.readable(request, send)
            self._check_caller(request)
            await self._router(scope, receive, send)
        except RequestError as exc:
            await error_response(exc)(scope, receive, send)
        except HTTPException as exc:
            await error_response(_routing_error(exc, scope))(scope, receive, send)

    def _check_caller(self, request: Request) -> None:
        """Raises Forbidden or AuthenticationFailed. A page in a browser on this machine is no
        operator.
        """
        host = request.headers.get("host", "")
        if self._hosts is not None and not self._hosts.allows(host):
            raise Forbidden(
                f"The admin plane is not known as {host[:100]!r}; --allowed-hosts names it.",
                param="Host",
                code="foreign_host",
            )
        if request.url.path == "/health":
            return
        self._page_origins.check(request)
        self._key.check(request.headers.get("authorization", ""))

    def _routes(self) -> list[Route]:
        def route(path: str, method: str, handler: Handler) -> Route:
            async def answer(request: Request) -> Response:
                return await _answered(handler, request)

            return Route(path, answer, methods=[method])

        return [
            route("/health", "GET", _health),
            route("/workers", "GET", self._workers),
            route("/stats", "GET", self._stats),
            route("/get_server_info", "GET", self._stats),
            route("/pause_generation", "POST", self._pause),
            route("/continue_generation", "POST", self._continue),
            route("/flush_cache", "POST", self._flush),
            route("/start_profile", "POST", self._start_profile),
            route("/stop_profile", "POST", self._stop_profile),
            route("/sleep", "POST", self._sleep),
            route("/wake_up", "POST", self._wake_up),
            route("/is_sleeping", "GET", self._is_sleeping),
            route("/drain_worker", "POST", self._drain),
            route("/kill_worker", "POST", self._kill),
            route("/abort_request", "POST", self._abort),
            route("/update_weights_from_disk", "POST", self._update_weights),
            route("/v1/load_lora_adapter", "POST", self._load_lora),
            route("/v1/unload_lora_adapter", "POST", self._unload_lora),
        ]

    async def _workers(self, request: Request) -> Response:
        cards = await self._plane.workers(Target(request.query_params.get("model")))
        return _json({"workers": [worker_facts(card) for card in cards]})

    async def _stats(self, request: Request) -> Response:
        model = request.query_params.get("model")
        replies = await self._plane.send(Target(model), GetStats())
        seen = await self._reader.snapshot()
        return _json(
            {
                "models": [card.name for card in seen.models],
                "queues": (seen if model is None else seen.of_model(model)).queues,
                "workers": replies,
            }
        )

    async def _pause(self, request: Request) -> Response:
        body = await _body(request, PauseBody)
        return await self._send(body.target, Pause(body.mode, body.freeze_s))

    async def _continue(self, request: Request) -> Response:
        return await self._send((await _body(request, TargetBody)).target, Continue())

    async def _flush(self, request: Request) -> Response:
        return await self._send((await _body(request, TargetBody)).target, FlushCache())

    async def _start_profile(self, request: Request) -> Response:
        body = await _body(request, ProfileBody)
        if not 0 < body.max_s <= MAX_PROFILE_S:
            raise InvalidRequest(
                f"'max_s' is {body.max_s:g}, must be above 0, up to {MAX_PROFILE_S:g}",
                param="max_s",
            )
        return await self._send(body.target, StartProfile(body.max_s))

    async def _stop_profile(self, request: Request) -> Response:
        return await self._send((await _body(request, TargetBody)).target, StopProfile())

    async def _sleep(self, request: Request) -> Response:
        """Answers when all workers that are meant have given their memory back."""
        query = _query(request, SleepQuery)
        target = (await _body(request, TargetBody)).target
        return _answer(await SleepOrders(self._plane).sleep(target, query.order))

    async def _wake_up(self, request: Request) -> Response:
        """Answers when they have loaded: minutes later."""
        _query(request, WakeUpQuery)
        target = (await _body(request, TargetBody)).target
        return _answer(await SleepOrders(self._plane).wake_up(target))

    async def _is_sleeping(self, request: Request) -> Response:
        target = Target(request.query_params.get("model"))
        return _json({"is_sleeping": await SleepOrders(self._plane).are_asleep(target)})

    async def _drain(self, request: Request) -> Response:
        body = await _body(request, DrainBody)
        return await self._send(Target(None, (body.worker,)), Drain(body.timeout_s))

    async def _kill(self, request: Request) -> Response:
        body = await _body(request, KillBody)
        return await self._send(Target(None, (body.worker,)), Kill())

    async def _abort(self, request: Request) -> Response:
        body = await _body(request, AbortBody)
        if body.abort_all == (body.rid is not None):
            raise InvalidRequest("give 'rid', or 'abort_all' and 'model'", param="rid")
        if body.rid is not None:
            return _json({"num_aborted": await self._plane.abort(body.rid)})
        if body.model is None:
            raise InvalidRequest("'abort_all' needs 'model'", param="model")
        return _json({"num_aborted": await self._plane.abort_all(body.model)})

    async def _update_weights(self, request: Request) -> Response:
        """Answers when all is done: minutes later."""
        order = await _body(request, WeightsOrder)
        result = await RollingUpdate(self._cluster, self._plane, order).run()
        facts: dict[str, Any] = msgspec.to_builtins(result)
        message = f"serves revision {result.revision}" if result.ok else "some keep their weights"
        body = {"success": result.ok, "message": message} | facts
        return _json(body, 200 if result.ok else 409)

    async def _load_lora(self, request: Request) -> Response:
        """Answers when every worker has it, or none."""
        body = await _body(request, LoadLoraBody)
        orders = LoraOrders(self._cluster, self._plane)
        result = await orders.load(body.lora_name, body.lora_path, body.model)
        return _json({"success": True} | msgspec.to_builtins(result))

    async def _unload_lora(self, request: Request) -> Response:
        body = await _body(request, UnloadLoraBody)
        result = await LoraOrders(self._cluster, self._plane).unload(body.lora_name, body.model)
        return _json({"success": True} | msgspec.to_builtins(result))

    async def _send(self, target: Target, order: ControlRequest) -> Response:
        return _answer(await self._plane.send(target, order))


async def _health(_: Request) -> Response:
    return _json({"status": "ok"})


async def _answered(handler: Handler, request: Request) -> Response:
    """Errors become answers."""
    try:
        return await handler(request)
    except RequestError as exc:
        return error_response(exc)
    except ConfigError as exc:
        return error_response(InvalidRequest(str(exc)))
    except BrokerError as exc:
        return error_response(ServiceUnavailable(f"NATS refused: {exc}"))
    except Exception:
        log.exception("admin_request_failed", path=request.url.path)
        return error_response(InternalError("The admin plane could not handle the request."))


async def _body(request: Request, body_type: type[T]) -> T:
    """Raises InvalidRequest, which names the field. No body is an empty one."""
    data = await read_body(request, _MAX_BODY_BYTES)
    try:
        return msgspec.json.decode(data or b"{}", type=body_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}") from exc


def _query(request: Request, query_type: type[T]) -> T:
    """Raises InvalidRequest, which names the parameter."""
    try:
        return msgspec.convert(dict(request.query_params), query_type, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"The query is not valid: {exc}") from exc


def _answer(replies: Sequence[ControlReply]) -> Response:
    """Raises NotFound."""
    if not replies:
        raise NotFound("No worker lives.")
    success = all(reply.ok for reply in replies)
    return _json({"success": success, "workers": replies}, 200 if success else 409)


def _json(body: object, status_code: int = 200) -> Response:
    return json_response(msgspec.json.encode(body), status_code)


def _routing_error(exc: HTTPException, scope: Scope) -> RequestError:
    path = scope["path"][:200]
    if exc.status_code == 405:
        return MethodNotAllowed(f"{scope['method']} is not allowed on {path}.")
    return NotFound(f"There is nothing at {path}.")


def run_admin_server(config: AdminConfig) -> None:
    """Serves the admin plane until SIGTERM. Raises ConfigError."""
    setup_logging("admin", config.log_level, config.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    asyncio.run(_serve(config))


async def _serve(config: AdminConfig) -> None:
    key, page_origins = config.checked_key(), config.checked_page_origins()
    listener = bind(config.admin_host, config.admin_port)
    async with existing_cluster(config, "jetflock admin", waits=True) as cluster:
        server = http_server(AdminApp(cluster, key, page_origins, config.host_rule()))

        def stop() -> None:
            server.should_exit = True

        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stop)
        host, port = listener.getsockname()[:2]
        log.info("admin_listening", host=host, port=port)
        await server.serve([listener])
