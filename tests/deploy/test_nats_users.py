"""What a stolen credential cannot do: each user against a real server with the generated file."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client

from deploy.nats.permissions import ADMIN, DETOK, FRONTEND, WORKER, permissions
from deploy.nats.users import write_users
from shared.config import ClusterConfig
from shared.connection import connect
from shared.subjects import Subjects
from tests.nats_server import NatsServer

pytestmark = pytest.mark.integration

CLIENT, OTHER = "client", "other"
RID = "0" * 32
ROLES = {FRONTEND, WORKER, DETOK}

# Who may publish there, besides the admin.
MAY_PUBLISH = {
    "jf.req.pool.interactive": {FRONTEND},
    f"jf.own.0.{RID}": {FRONTEND, WORKER},
    "jf.tok.0.worker-1": {WORKER},
    f"jf.done.{RID}": {DETOK},
    "jf.dead.pool": {WORKER},
    "jf.event.pool": {WORKER},
    f"jf.resp.{RID}": {FRONTEND, DETOK},
    "jf.out.frontend-1": {DETOK},
    "jf.ctl.pool.notice": {FRONTEND, DETOK},
    "jf.ctl.pool.prefixes": {WORKER},
    "jf.ctl.pool.offer.worker-1": {WORKER},
    "jf.ctl.worker_died": set(),
    "jf.adm.pool": set(),
    "jf.adm.pool.worker-1": set(),
    "jf.rpc.detok.0": {FRONTEND},
    "$KV.jf_workers.pool.worker-1": {WORKER},
    "$KV.jf_roles.frontend-1": {FRONTEND, DETOK},
    "$KV.jf_models.pool": set(),
    "$KV.jf_leases.0": {DETOK},
    "$KV.jf_floors.0": {DETOK},
    f"$KV.jf_attached.{RID}": {FRONTEND},
    "$KV.jf_idempotency.key": {FRONTEND},
    "$KV.jf_meta.incarnation": set(),
    "$O.jf_objects.C.x": {FRONTEND, WORKER},
    "$O.jf_objects.M.x": {FRONTEND, WORKER},
    "$JS.ACK.jf_REQUESTS.c.1.1.1.1.0": {WORKER, DETOK},
    "$JS.ACK.jf_TOKENS.c.1.1.1.1.0": set(),
    "$JS.API.CONSUMER.MSG.NEXT.jf_REQUESTS.pool_interactive": {WORKER},
    "$JS.API.CONSUMER.DURABLE.CREATE.jf_REQUESTS.pool_interactive": set(),
    "$JS.API.CONSUMER.DELETE.jf_REQUESTS.pool_interactive": set(),
    "$JS.API.CONSUMER.CREATE.jf_REQUESTS": set(),
    "$JS.API.CONSUMER.CREATE.jf_TOKENS": {WORKER, DETOK},
    "$JS.API.STREAM.CREATE.jf_OTHER": set(),
    "$JS.API.STREAM.UPDATE.jf_REQUESTS": set(),
    "$JS.API.STREAM.DELETE.jf_TOKENS": set(),
    "$JS.API.STREAM.PURGE.jf_REQUESTS": set(),
    "$JS.API.STREAM.PURGE.jf_TOKENS": set(),
    "$JS.API.STREAM.PURGE.jf_RESPONSES": {FRONTEND},
    "$JS.API.STREAM.PURGE.KV_jf_models": set(),
    "$JS.API.STREAM.PURGE.KV_jf_leases": {DETOK},
    "$JS.API.STREAM.MSG.DELETE.jf_REQUESTS": {WORKER},
    "$JS.API.STREAM.MSG.DELETE.jf_DEAD": {WORKER},
    "$JS.API.STREAM.MSG.GET.jf_REQUESTS": {FRONTEND, WORKER},
    "$JS.API.STREAM.MSG.GET.jf_TOKENS": ROLES,
    "$JS.API.STREAM.MSG.GET.jf_DEAD": set(),
    "$JS.API.STREAM.MSG.GET.jf_RESPONSES": {FRONTEND},
    "$JS.API.DIRECT.GET.KV_jf_idempotency": {FRONTEND},
    "$JS.API.DIRECT.GET.jf_EVENTS": {FRONTEND},
    "$JS.API.STREAM.MSG.GET.jf_EVENTS": set(),
    "$JS.API.STREAM.INFO.jf_REQUESTS": ROLES,
    "jetflock.generate": {CLIENT, OTHER},
    "jetflock.responses.get": {CLIENT, OTHER},
    "jetflock.files.part.frontend-1.x": {CLIENT, OTHER},
    "_INBOX_client.x": {FRONTEND},
    "_INBOX_frontend.x": {FRONTEND, DETOK},
    "_INBOX_worker.x": {WORKER},
    "_INBOX_admin.x": {WORKER},
    "_INBOX.x": set(),
    "anything": set(),
}

MAY_SUBSCRIBE = {
    "jf.>": set(),
    ">": set(),
    "jf.req.*.*": set(),
    "jf.own.*.*": set(),
    "jf.tok.*.*": set(),
    "jf.done.*": set(),
    "jf.out.*": {FRONTEND},
    "jf.ctl.*.notice": {WORKER},
    "jf.ctl.worker_died": {DETOK},
    "jf.ctl.*.offer.worker-1": {WORKER},
    "jf.adm.pool.worker-1": {WORKER},
    "jf.rpc.detok.0": {DETOK},
    "$KV.jf_leases.*": {DETOK},
    "$KV.jf_models.>": set(),
    "$O.>": set(),
    "$JS.>": set(),
    "jetflock.generate": {FRONTEND},
    "jetflock.files.part.frontend-1.*": {FRONTEND},
    "_INBOX.>": set(),
    "_INBOX_client.>": {CLIENT},
    "_INBOX_other.>": {OTHER},
    "_INBOX_frontend.>": {FRONTEND},
    "_INBOX_worker.>": {WORKER},
    "_INBOX_detok.>": {DETOK},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("users")
    write_users(folder, permissions(Subjects(), "jetflock", [CLIENT, OTHER]))
    return folder


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = NatsServer(
        tmp_path_factory.mktemp("nats"), config=f'include "{folder.name}/users.conf"'
    )
    server.folder.joinpath(folder.name).symlink_to(folder)  # an include is relative to its file
    server.start()
    yield server.url
    server.kill()


class Thief(Client):
    """A plain connection with a stolen password: counts what the server refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    async def on_error(self, exc: Exception) -> None:
        self.refused.append(str(exc))


@pytest.fixture(params=[ADMIN, FRONTEND, WORKER, DETOK, CLIENT, OTHER])
async def thief(request: pytest.FixtureRequest, url: str, folder: Path) -> AsyncIterator[Thief]:
    thief = Thief()
    thief.user = request.param
    await thief.connect(
        url,
        user=thief.user,
        password=(folder / f"{thief.user}.password").read_text().strip(),
        error_cb=thief.on_error,
    )
    yield thief
    await thief.close()


async def refused_subjects(thief: Thief, kind: str, asked: Iterable[str]) -> set[str]:
    """The client tells errors in lower case."""
    if thief.user != ADMIN:
        await thief.publish("the.last.one")  # when this is refused, all before it were
        deadline = time.monotonic() + 60
        while not any("the.last.one" in error for error in thief.refused):
            assert time.monotonic() < deadline, f"{thief.user} heard {thief.refused}"
            await asyncio.sleep(0.01)
    marker = f'permissions violation for {kind} to "'
    told = {error.split('"')[1] for error in thief.refused if marker in error.lower()}
    return {subject for subject in asked if subject.lower() in told}


async def test_what_each_user_may_publish(thief: Thief) -> None:
    for subject in MAY_PUBLISH:
        await thief.publish(subject, b"{}")
        await thief.flush()
    may = {subject for subject, users in MAY_PUBLISH.items() if thief.user in {ADMIN} | users}
    assert await refused_subjects(thief, "publish", MAY_PUBLISH) == MAY_PUBLISH.keys() - may


async def test_what_each_user_may_hear(thief: Thief) -> None:
    for subject in MAY_SUBSCRIBE:
        await thief.subscribe(subject)
        await thief.flush()
    may = {subject for subject, users in MAY_SUBSCRIBE.items() if thief.user in {ADMIN} | users}
    assert (
        await refused_subjects(thief, "subscription", MAY_SUBSCRIBE) == MAY_SUBSCRIBE.keys() - may
    )


async def test_nobody_comes_in_without_a_password(url: str) -> None:
    client = Client()
    with pytest.raises(nats.errors.Error):
        await client.connect(url, allow_reconnect=False, max_reconnect_attempts=0)


async def test_a_role_hears_its_answers_on_its_own_inbox(url: str, folder: Path) -> None:
    config = ClusterConfig(
        nats_url=url, nats_user=WORKER, nats_password_file=folder / "worker.password"
    )
    nc = await connect(config, "test")
    try:
        assert nc.new_inbox().startswith("_INBOX_worker.")
        assert (await nc.request("$JS.API.STREAM.INFO.none", b"", 5)).data
    finally:
        await nc.close()


def test_the_command_keeps_passwords_and_refuses_bad_names(tmp_path: Path) -> None:
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "jetflock", "nats-users", "--out", tmp_path / "u", *argv],
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert "users.conf: admin, frontend, worker, detok, client" in run().stdout
    password = (tmp_path / "u/worker.password").read_text()
    assert run("--clients", "alice", "--clients", "bob").returncode == 0
    assert (tmp_path / "u/worker.password").read_text() == password
    assert "_INBOX_bob.>" in (tmp_path / "u/users.conf").read_text()
    assert stat.S_IMODE((tmp_path / "u/users.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "u/worker.password").stat().st_mode) == 0o600
    for bad in ("worker", "a.b", "x>"):
        refused = run("--clients", bad)
        assert refused.returncode == 2
        assert bad in refused.stderr
