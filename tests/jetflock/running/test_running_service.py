"""Commands find the `jetflock serve` that runs here, and ask when there are several."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.running_stack import RunningStack, announced, running_stacks
from jetflock.running.running_service import DEFAULT_URL, ServiceConfig, frontend_url, with_service
from shared.errors import ConfigError
from tests.deploy.local_stack import REPOSITORY, LocalStack
from tests.forked_program import run_program
from tests.nats_server import NatsServer, free_port

REFUSED_WITHIN_S = 12.0  # starting Python on a busy machine included; waiting would take 15 more


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def a_stack(nats_url: str, model: str = "m", prefix: str = "jf") -> RunningStack:
    return RunningStack(os.getpid(), "http://127.0.0.1:8123", nats_url, prefix, model, time.time())


def test_a_stack_is_known_while_it_lives(state: Path) -> None:
    stack = RunningStack.of_this_process(
        url="http://127.0.0.1:8123",
        nats_url="nats://user:secret@127.0.0.1:4222",
        prefix="jf",
        model="m",
        data_dir="",
        admin_url="",
        model_path="/models/m",
    )
    with announced(stack):
        [found] = running_stacks()
        assert found == stack
        assert found.nats_url == "nats://127.0.0.1:4222"
        assert frontend_url() == "http://127.0.0.1:8123"
    assert running_stacks() == []
    assert frontend_url() == DEFAULT_URL


def test_what_a_kill_9_left_is_nobody(state: Path) -> None:
    left = state / "jetflock" / "running" / "7.json"
    left.parent.mkdir(parents=True)
    left.write_text('{"pid": 7}')
    assert running_stacks() == []
    assert not left.exists()


def test_a_folder_that_cannot_be_written_is_told(state: Path) -> None:
    state.write_text("no folder")
    with (
        pytest.raises(ConfigError, match=r"cannot write .*XDG_STATE_HOME"),
        announced(a_stack("nats://127.0.0.1:1")),
    ):
        pass


@pytest.mark.integration
def test_the_only_stack_is_meant_with_its_prefix(state: Path, nats_server: NatsServer) -> None:
    with announced(a_stack(nats_server.url, prefix="mine")):
        config = with_service(ServiceConfig())
    assert (config.nats_url, config.prefix) == (nats_server.url, "mine")


@pytest.mark.integration
def test_a_named_server_is_used_whatever_runs_here(state: Path, nats_server: NatsServer) -> None:
    with announced(a_stack("nats://127.0.0.1:1", prefix="other")):
        config = with_service(ServiceConfig(nats_url=nats_server.url))
    assert (config.nats_url, config.prefix) == (nats_server.url, "jf")


def test_of_two_one_has_to_be_named(state: Path) -> None:
    first, second = a_stack("nats://127.0.0.1:1", "one"), a_stack("nats://127.0.0.1:2", "two")
    second = RunningStack(second.pid + 1, "http://b", second.nats_url, "jf", "two", 1.0)
    with announced(first), announced(second):
        with pytest.raises(ConfigError, match=r"--nats-url nats://127.0.0.1:1 \(one\)"):
            with_service(ServiceConfig())
        with pytest.raises(ConfigError, match=r"several .* --url http://b \(two\)"):
            frontend_url()


@pytest.mark.e2e
def test_a_person_is_asked_which_of_two(state: Path) -> None:
    script = (
        "import os, time\n"
        "from deploy.local.running_stack import RunningStack, announced\n"
        "from jetflock.running.running_service import frontend_url\n"
        "a = RunningStack(1, 'http://a', 'nats://a', 'jf', 'one', 1.0)\n"
        "b = RunningStack(2, 'http://b', 'nats://b', 'jf', 'two', 2.0)\n"
        "with announced(a), announced(b):\n"
        "    print('chosen', frontend_url())\n"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, b"2\n")
    assert process.wait(30) == 0
    assert "chosen http://b" in os.read(ours, 4096).decode()
    os.close(ours)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "words",
    [
        ("top", "--once"),
        ("admin", "workers"),
        ("dead", "list"),
        ("models",),
        ("events",),
        ("chat", "hello"),
        ("chat", "--url", "nats://127.0.0.1:1", "hello"),
    ],
)
def test_nobody_is_told_at_once(state: Path, words: tuple[str, ...]) -> None:
    urls = {"NATS_URL": f"nats://127.0.0.1:{free_port()}", "URL": f"http://127.0.0.1:{free_port()}"}
    if words[0] != "chat":
        urls.pop("URL")
    elif "--url" in words:
        urls = {}
    environ = os.environ | {f"JETFLOCK_{name}": url for name, url in urls.items()}
    began_at = time.monotonic()
    done = run_program("jetflock", *words, env=environ)
    assert time.monotonic() - began_at < REFUSED_WITHIN_S
    assert done.returncode != 0
    assert "jetflock serve" in done.stderr, done.stderr


@pytest.fixture
def stack(tmp_path: Path, state: Path) -> Iterator[LocalStack]:
    stack = LocalStack(tmp_path / "stack", env={"XDG_STATE_HOME": str(state)})
    yield stack.start().wait_ready()
    stack.kill()


@pytest.mark.integration
@pytest.mark.e2e
def test_commands_find_a_service_on_any_port(stack: LocalStack) -> None:
    def jetflock(*words: str) -> str:
        done = run_program("jetflock", *words)
        assert done.returncode in (0, 1), done.stderr  # doctor may find fault with the machine
        return done.stdout

    [listed] = json.loads(jetflock("ps", "--json"))
    assert listed["pid"] == stack.process.pid
    assert listed["url"] == f"http://127.0.0.1:{stack.port}"
    assert stack.nats_url in jetflock("ps")
    assert "jetflock-demo" in jetflock("models")
    assert "ready" in jetflock("admin", "workers")
    assert "workers of jetflock-demo" in jetflock("doctor")
    stack.interrupt()
    assert stack.wait_exit() == 0
    assert jetflock("ps", "--json").strip() == "[]"
