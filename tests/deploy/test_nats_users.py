"""What a stolen credential cannot do: each user against a real server with the generated file."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client

from deploy.nats.permissions import (
    ADMIN,
    DETOK,
    FRONTEND,
    SERVICE,
    WORKER,
    in_domain,
    on_prefixes,
    permissions,
)
from shared.config import ERASER, ClusterConfig
from shared.nats_client.connection import connect
from shared.subjects import Subjects
from tests.eventually import Looks
from tests.forked_program import run_program
from tests.nats_users import NatsUsers

pytestmark = pytest.mark.integration

CLIENT, OTHER = "client", "other"
RID = "0" * 32
ROLES = {FRONTEND, ERASER, WORKER, DETOK}
READERS = {FRONTEND, WORKER, DETOK}

# Who may publish there, besides the admin.
MAY_PUBLISH = {
    f"jf.req.pool.interactive.frontend-1.{RID}": {FRONTEND},
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
    "jf.here.worker-1": {DETOK},
    "$KV.jf_workers.pool.worker-1": {WORKER},
    "$KV.jf_roles.frontend-1": {FRONTEND, DETOK},
    "$KV.jf_models.pool": set(),
    "$KV.jf_owners.0": {DETOK},
    "$KV.jf_meta.level": {DETOK},
    "$KV.jf_floors.0": {DETOK},
    f"$KV.jf_attached.{RID}": {FRONTEND},
    "$KV.jf_idempotency.key": {FRONTEND},
    "$KV.jf_meta.incarnation": set(),
    "$O.jf_objects.C.x": {ERASER, WORKER},
    "$O.jf_objects.M.x": {ERASER, WORKER},
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
    "$JS.API.STREAM.PURGE.jf_RESPONSES": {ERASER},
    "$JS.API.STREAM.PURGE.KV_jf_files": {ERASER},
    "$JS.API.STREAM.PURGE.KV_jf_floors": set(),
    "$JS.API.STREAM.PURGE.KV_jf_idempotency": set(),
    "$JS.API.STREAM.PURGE.OBJ_jf_files": {ERASER},
    "$JS.API.STREAM.PURGE.KV_jf_models": set(),
    "$JS.API.STREAM.PURGE.KV_jf_owners": {DETOK},
    "$JS.API.STREAM.MSG.DELETE.jf_REQUESTS": {ERASER, WORKER},
    "$JS.API.STREAM.MSG.DELETE.jf_TOKENS": {ERASER},
    "$JS.API.STREAM.MSG.DELETE.jf_RESULTS": {ERASER},
    "$JS.API.STREAM.MSG.DELETE.jf_DEAD": {ERASER, WORKER},
    "$JS.API.STREAM.MSG.DELETE.KV_jf_secrets": set(),
    "$JS.API.STREAM.MSG.GET.jf_REQUESTS": {FRONTEND, WORKER},
    "$JS.API.STREAM.MSG.GET.jf_TOKENS": READERS,
    "$JS.API.STREAM.MSG.GET.jf_DEAD": {FRONTEND},
    "$JS.API.STREAM.MSG.GET.jf_RESULTS": READERS,
    "$JS.API.STREAM.MSG.GET.jf_RESPONSES": {FRONTEND, DETOK},
    "$JS.API.DIRECT.GET.KV_jf_idempotency": {FRONTEND},
    "$JS.API.DIRECT.GET.jf_EVENTS": {FRONTEND},
    "$JS.API.STREAM.MSG.GET.jf_EVENTS": set(),
    "$JS.API.STREAM.INFO.jf_REQUESTS": ROLES,
    "jetflock.generate": set(),
    "jetflock.client.generate": {CLIENT},
    "jetflock.client.responses.get": {CLIENT},
    "jetflock.client.files.part.frontend-1.x": {CLIENT},
    "jetflock.other.generate": {OTHER},
    "$SRV.PING": set(),
    "_INBOX_client.x": {SERVICE},
    "_INBOX_other.x": {SERVICE},
    "_INBOX_jf_service.x": {SERVICE},
    "_INBOX_jf_frontend.x": {FRONTEND, DETOK},
    "_INBOX_jf_worker.x": {WORKER},
    "_INBOX_jf_eraser.x": {ERASER},
    "_INBOX_jf_admin.x": {WORKER},
    "_INBOX.x": set(),
    "_R_.x": set(),
    "anything": set(),
}

MAY_SUBSCRIBE = {
    "jf.>": set(),
    ">": set(),
    "jf.req.>": set(),
    "jf.own.*.*": set(),
    "jf.tok.*.*": set(),
    "jf.done.*": set(),
    "jf.out.*": {FRONTEND},
    "jf.ctl.*.notice": {WORKER},
    "jf.ctl.worker_died": {DETOK},
    "jf.ctl.*.offer.worker-1": {WORKER},
    "jf.adm.pool.worker-1": {WORKER},
    "jf.rpc.detok.0": {DETOK},
    "jf.here.*": {WORKER, DETOK},
    "$KV.jf_owners.*": {DETOK},
    "$KV.jf_models.>": set(),
    "$O.>": set(),
    "$JS.>": set(),
    "jetflock.>": set(),
    "jetflock.*.generate": {SERVICE},
    "jetflock.client.generate": {SERVICE},
    "jetflock.*.files.part.frontend-1.*": {SERVICE},
    "$SRV.PING": {SERVICE},
    "_INBOX.>": set(),
    "_INBOX_client.>": {CLIENT},
    "_INBOX_other.>": {OTHER},
    "_INBOX_jf_service.>": {SERVICE},
    "_INBOX_jf_frontend.>": {FRONTEND},
    "_INBOX_jf_worker.>": {WORKER},
    "_INBOX_jf_eraser.>": {ERASER},
    "_INBOX_jf_detok.>": {DETOK},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    server = NatsUsers(folder, [CLIENT, OTHER]).server()
    server.start()
    yield server.url
    server.kill()


class Thief(Client):
    """A plain connection with a stolen password: counts what the server refuses."""

    def __init__(self, user: str) -> None:
        super().__init__()
        self.user = user
        self.refused: list[str] = []

    async def on_error(self, exc: Exception) -> None:
        self.refused.append(str(exc))


@pytest.fixture(params=[ADMIN, FRONTEND, SERVICE, ERASER, WORKER, DETOK, CLIENT, OTHER])
async def thief(request: pytest.FixtureRequest, url: str, folder: Path) -> AsyncIterator[Thief]:
    thief = Thief(request.param)
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
        async for _ in Looks(60, lambda: f"{thief.user} heard {thief.refused}"):
            if any("the.last.one" in error for error in thief.refused):
                break
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
    nc = await connect(config, "test", role=WORKER)
    try:
        assert nc.new_inbox().startswith("_INBOX_jf_worker.")
        assert (await nc.request("$JS.API.STREAM.INFO.none", b"", 5)).data
    finally:
        await nc.close()


def test_the_command_keeps_passwords_and_refuses_bad_names(tmp_path: Path) -> None:
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return run_program("jetflock", "nats-users", "--out", str(tmp_path / "u"), *argv)

    assert "users.conf: admin, frontend, service, eraser, worker, detok, client\n" in run().stdout
    password = (tmp_path / "u/worker.password").read_text()
    assert run("--clients", "alice", "--clients", "bob").returncode == 0
    assert (tmp_path / "u/worker.password").read_text() == password
    assert "_INBOX_bob.>" in (tmp_path / "u/users.conf").read_text()
    assert stat.S_IMODE((tmp_path / "u/users.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "u/worker.password").stat().st_mode) == 0o600
    for bad in ("worker", "service", "eraser", "jf_frontend", "JETFLOCK", "a.b", "x>"):
        refused = run("--clients", bad)
        assert refused.returncode == 2
        assert bad in refused.stderr


def test_rights_on_both_sides_of_a_move() -> None:
    old, new = (permissions(Subjects(prefix), "jetflock") for prefix in ("jf", "blue"))
    both = on_prefixes(("jf", "blue"), "jetflock")
    for role, rights in both.items():
        assert set(rights.publish) == {*old[role].publish, *new[role].publish}
        assert set(rights.subscribe) == {*old[role].subscribe, *new[role].subscribe}


def test_rights_in_a_domain_are_the_same_ones() -> None:
    plain = permissions(Subjects(), "jetflock")
    far = in_domain(plain, "hub")
    assert in_domain(plain, None) == plain
    for role, rights in plain.items():
        assert far[role].subscribe == rights.subscribe
        added = set(far[role].publish) - set(rights.publish)
        named = {
            subject.replace("$JS.hub.API.$KV.", "$KV.").replace("$JS.hub.API.", "$JS.API.")
            for subject in added
        }
        assert named == {
            subject for subject in rights.publish if subject.startswith(("$JS.API.", "$KV."))
        }
