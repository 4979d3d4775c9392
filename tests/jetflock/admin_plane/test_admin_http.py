"""The admin plane over HTTP, against a running worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jetflock.admin_plane.admin_app import AdminApp
from jetflock.admin_plane.admin_config import AdminConfig, AdminKey
from jetflock.admin_plane.page_origins import PageOrigins
from shared.errors import ConfigError
from shared.protocol.codec import encode
from shared.protocol.role_cards import WorkerState
from shared.status.http_host import HostRule
from shared.status.http_origin import checked_origin
from tests.eventually import eventually
from tests.nats_server import NatsServer
from tests.worker.checkpoints import DEMO_MODEL, copy_checkpoint, read_checkpoint
from tests.worker.io_stage import Stage, make_card, make_request, open_stage
from tests.worker.running_worker import RunningWorker, running_worker

integration = pytest.mark.integration


@pytest.fixture
async def stage(nats_server: NatsServer) -> AsyncIterator[Stage]:
    async with open_stage(nats_server.url) as stage:
        card = make_card()
        models = stage.cluster.bucket(stage.cluster.subjects.models_bucket)
        await models.put(card.pool, encode(card))
        yield stage


@pytest.fixture
async def worker(stage: Stage) -> AsyncIterator[RunningWorker]:
    async with running_worker(stage, checkpoint=read_checkpoint(DEMO_MODEL)) as running:
        yield running


def client(
    stage: Stage,
    key: str | None = None,
    pages: tuple[str, ...] = (),
    hosts: HostRule | None = None,
    **headers: str,
) -> httpx.AsyncClient:
    app = AdminApp(stage.cluster, AdminKey(key), PageOrigins(pages), hosts)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url="http://admin", headers=headers)


async def post(stage: Stage, path: str, body: Any = None) -> tuple[int, Any]:
    async with client(stage) as http:
        answer = await http.post(path, json=body) if body is not None else await http.post(path)
    return answer.status_code, answer.json()


def done(worker: RunningWorker) -> tuple[int, dict[str, Any]]:
    return 200, {"success": True, "workers": [{"worker": worker.id, "ok": True}]}


@integration
async def test_pause_freeze_and_continue(stage: Stage, worker: RunningWorker) -> None:
    assert await post(stage, "/pause_generation") == done(worker)
    assert worker.worker._state is WorkerState.PAUSED
    assert await post(stage, "/pause_generation", {"mode": "freeze", "model": "m"}) == done(worker)
    assert worker.engine.is_paused
    async with client(stage) as http:
        [shown] = (await http.get("/stats")).json()["workers"]
        assert shown["stats"]["state"] == "frozen"
        await eventually(lambda: worker.worker._state is WorkerState.FROZEN)
        assert (await http.get("/get_server_info")).json()["models"] == ["m"]
        assert (await http.get("/workers")).json()["workers"][0]["worker"] == worker.id
    assert await post(stage, "/continue_generation", {"workers": [worker.id]}) == done(worker)
    assert worker.worker._state is WorkerState.READY


@integration
async def test_sleep_and_wake_up(stage: Stage, worker: RunningWorker) -> None:
    async def is_sleeping() -> Any:
        async with client(stage) as http:
            return (await http.get("/is_sleeping?model=m")).json()

    assert await is_sleeping() == {"is_sleeping": False}
    assert await post(stage, "/sleep?level=1&mode=wait", {"model": "m"}) == done(worker)
    assert await is_sleeping() == {"is_sleeping": True}
    assert worker.engine.num_releases == 1
    assert await post(stage, "/wake_up") == done(worker)
    assert await is_sleeping() == {"is_sleeping": False}
    for query in (
        "sleep?level=x",
        "sleep?mode=abort",
        "sleep?tags=weights",
        "wake_up?tags=weights",
    ):
        assert (await post(stage, f"/{query}"))[0] == 400
    assert (await post(stage, "/sleep?level=3"))[0] == 409


@integration
async def test_flush_and_abort(stage: Stage, worker: RunningWorker) -> None:
    assert await post(stage, "/flush_cache") == done(worker)
    assert worker.engine.num_flushes == 1
    await post(stage, "/pause_generation")
    first, second = make_request(), make_request()
    await stage.submit(first)
    await stage.submit(second)
    assert await post(stage, "/abort_request", {"rid": first.rid}) == (200, {"num_aborted": 1})
    order = {"abort_all": True, "model": "m"}
    assert await post(stage, "/abort_request", order) == (200, {"num_aborted": 1})
    assert (await post(stage, "/abort_request", {"rid": make_request().rid}))[0] == 404


@integration
async def test_drain(stage: Stage, worker: RunningWorker) -> None:
    assert await post(stage, "/drain_worker", {"worker": worker.id}) == done(worker)
    async with asyncio.timeout(10):
        await asyncio.wait([worker.task])
    assert (await post(stage, "/pause_generation"))[0] == 404


@integration
async def test_update_weights(stage: Stage, worker: RunningWorker, tmp_path: Path) -> None:
    path = copy_checkpoint(tmp_path / "new")
    # The worker of this test serves under a name of its own: only it is updated, not the card.
    order = {"model_path": str(path), "workers": [worker.id]}
    updating = asyncio.create_task(post(stage, "/update_weights_from_disk", order))
    await eventually(lambda: len(worker.engines) == 2)
    worker.engine.become_ready()
    status, answer = await updating
    assert (status, answer["success"], answer["updated"]) == (200, True, [worker.id])
    assert answer["revision"] == read_checkpoint(path).revision
    order = {"model_path": str(tmp_path / "nowhere")}
    status, answer = await post(stage, "/update_weights_from_disk", order)
    assert status == 400
    assert "is no folder" in answer["error"]["message"]
    assert worker.worker._state is WorkerState.READY


@integration
async def test_what_is_wrong_is_named(stage: Stage, worker: RunningWorker) -> None:
    async def complaint(path: str, body: Any) -> str:
        status, answer = await post(stage, path, body)
        assert status in (400, 404)
        return str(answer["error"]["message"])

    assert "modus" in await complaint("/pause_generation", {"modus": "finish"})
    assert "$.mode" in await complaint("/pause_generation", {"mode": "abort"})
    assert "No model 'x'" in await complaint("/flush_cache", {"model": "x"})
    assert "No worker w1 lives" in await complaint("/drain_worker", {"worker": "w1"})
    assert "No worker w1 lives" in await complaint("/kill_worker", {"worker": "w1"})
    assert "worker" in await complaint("/kill_worker", {})
    assert "--profile-dir" in str(await post(stage, "/start_profile", {"max_s": 1}))
    assert "output_dir" in await complaint("/start_profile", {"output_dir": "/etc"})
    for max_s in (0, 61):
        assert "'max_s' is" in await complaint("/start_profile", {"max_s": max_s})
    assert "'abort_all' needs 'model'" in await complaint("/abort_request", {"abort_all": True})
    assert "give 'rid'" in await complaint("/abort_request", {})
    assert "model_path" in await complaint("/update_weights_from_disk", {})
    assert "There is nothing at /explode" in await complaint("/explode", {})
    status, answer = await post(stage, "/pause_generation", {"mode": "freeze", "freeze_s": 0})
    assert (status, answer["success"]) == (409, False)
    assert "freeze_s" in answer["workers"][0]["message"]


@integration
async def test_nothing_without_the_key(stage: Stage, worker: RunningWorker) -> None:
    wrong: tuple[dict[str, Any], ...]
    wrong = ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"})
    for headers in wrong:
        async with client(stage, "secret", **headers) as http:
            for path in ("/workers", "/stats", "/nowhere"):
                assert (await http.get(path)).status_code == 401
            assert (await http.post("/pause_generation")).status_code == 401
            assert (await http.get("/health")).status_code == 200
    assert worker.worker._state is WorkerState.READY
    async with client(stage, "secret", authorization="Bearer secret") as http:
        assert (await http.post("/pause_generation")).status_code == 200
        # What a page in the operator's browser would send.
        page = {"origin": "http://evil.example"}
        assert (await http.post("/continue_generation", headers=page)).status_code == 401
    assert worker.worker._state is WorkerState.PAUSED


PAGE = "http://127.0.0.1:8000"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@integration
async def test_a_listed_page_gives_orders_with_the_key(stage: Stage, worker: RunningWorker) -> None:
    async with client(stage, "secret", (PAGE, "https://ops.example"), origin=PAGE) as http:
        preflight = await http.options("/pause_generation", headers=PREFLIGHT)
        assert (preflight.status_code, preflight.content) == (204, b"")
        assert preflight.headers["access-control-allow-headers"] == "Authorization, Content-Type"
        refused = await http.post("/pause_generation")
        assert refused.status_code == 401
        assert worker.worker._state is WorkerState.READY
        told = await http.post("/pause_generation", headers={"authorization": "Bearer secret"})
        assert told.status_code == 200
        for answer in (preflight, refused, told):
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in answer.headers
    assert worker.worker._state is WorkerState.PAUSED


@integration
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "https://127.0.0.1:8000",
        "http://127.0.0.1:80001",
        "http://127.0.0.1:8000.evil.example",
        "http://127.0.0.1:8000, http://evil.example",
        "HTTP://127.0.0.1:8000",
        "http://127.0.0.1:8000/",
    ],
)
async def test_other_pages_learn_and_do_nothing(
    stage: Stage, worker: RunningWorker, origin: str
) -> None:
    key: dict[str, Any] = {"authorization": "Bearer secret"}
    async with client(stage, "secret", (PAGE,), origin=origin, **key) as http:
        for answer in (
            await http.options("/pause_generation", headers=PREFLIGHT),
            await http.post("/pause_generation"),
            await http.get("/workers"),
        ):
            assert answer.status_code == 401
            assert "is not for the page of" in answer.json()["error"]["message"]
            assert not [name for name in answer.headers if name.startswith("access-control")]
    assert worker.worker._state is WorkerState.READY


def test_pages_need_a_key_and_are_named_as_browsers_do() -> None:
    def config(*origins: str, key: str | None = "secret") -> AdminConfig:
        return AdminConfig(admin_key=key, admin_page_origin=origins)

    with pytest.raises(ConfigError, match="needs a key"):
        config(PAGE, key=None).checked_page_origins()
    with pytest.raises(ConfigError, match="the admin key is empty"):
        config(key=" ").checked_key()
    wrong = ("*", "null", "evil.example", "http://*.example", "http://u@host", "ftp://host")
    for text in wrong:
        with pytest.raises(ConfigError, match="is no address of a server"):
            config(text).checked_page_origins()
    with pytest.raises(ConfigError, match="more than scheme, host and port"):
        config(f"{PAGE}/cluster").checked_page_origins()
    assert checked_origin("http://Host:80/", "--flag") == "http://host"
    assert checked_origin("https://[::1]:8443", "--flag") == "https://[::1]:8443"


def test_an_address_that_others_reach_needs_a_key(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "10.0.0.1", "::", "example.org"):
        with pytest.raises(ConfigError, match="give --admin-key-file"):
            AdminConfig(admin_host=host).checked_key()
    for host in ("127.0.0.1", "::1", "localhost"):
        AdminConfig(admin_host=host).checked_key().check("")
    empty = tmp_path / "key"
    empty.write_text("\n")
    with pytest.raises(ConfigError, match="holds no key"):
        AdminConfig(admin_key_file=empty).checked_key()
    empty.write_text("secret\n")
    AdminConfig(admin_host="::", admin_key_file=empty).checked_key().check("Bearer secret")


@integration
async def test_without_a_key_it_goes_by_the_names_of_this_machine(stage: Stage) -> None:
    rule = AdminConfig().host_rule()
    for host, status in (("127.0.0.1:8001", 200), ("evil.example:8001", 403)):
        async with client(stage, hosts=rule, host=host) as http:
            assert (await http.get("/workers")).status_code == status
    assert AdminConfig(admin_key="k").host_rule() is None
