"""`jetflock serve` keeps its tree: with stand-in roles and a real nats-server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from nats.aio.client import Client

from deploy.local.gpu_share import num_visible_gpus
from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket
from shared.catalog.model_catalog import ModelCatalog
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.nats_client.connection import round_trip
from shared.subjects import Subjects
from tests.deploy.local_stack import REPOSITORY, STAND_INS, LocalStack, any_alive
from tests.e2e.role_stack import DEMO_MODEL
from tests.eventually import Looks, wait_until
from tests.gguf_files import write_small_llama
from tests.jetflock.terminal_program import TerminalProgram
from tests.lora_adapters import make_lora_files
from tests.nats_server import NatsServer, free_port

pytestmark = [pytest.mark.integration, pytest.mark.e2e]

MakeStack = Callable[..., LocalStack]


def test_ready_block_names_everything_and_ctrl_c_ends_it(make_stack: MakeStack) -> None:
    stack = make_stack("--workers", "2").start().wait_ready()

    assert f"http://127.0.0.1:{stack.port}" in stack.out
    assert "jetflock-demo" in stack.out
    assert "2 processes" in stack.out
    assert stack.nats_url.startswith("nats://127.0.0.1:")
    curl = shlex.split(next(line for line in stack.out.splitlines() if "curl" in line))
    assert json.loads(curl[curl.index("-d") + 1])["model"] == "jetflock-demo"

    tree = stack.processes()
    started_at = time.monotonic()
    stack.interrupt()
    assert stack.wait_exit() == 0
    assert time.monotonic() - started_at < 5
    wait_until(lambda: not any_alive(tree), timeout_s=1)


def test_it_says_what_it_does_and_what_the_start_took(make_stack: MakeStack) -> None:
    stack = make_stack("--verbose").start().wait_ready()
    assert "serving jetflock-demo (" in stack.err
    assert "a nats-server (data in " in stack.err
    assert f"http://127.0.0.1:{stack.port}/openapi.json" in stack.out
    line = next(
        line
        for line in stack.out.splitlines()
        if f"chat --url http://127.0.0.1:{stack.port}" in line
    )
    done = subprocess.run([*shlex.split(line)[:-2], "--help"], cwd="/", env={}, check=False)
    assert done.returncode == 0  # as printed, with nothing on PATH, from anywhere
    rows = [line.split()[0] for line in stack.out.splitlines() if re.search(r"\d\.\d\d$", line)]
    assert set(rows) == {"this", "nats", "streams", "model", "frontend", "worker-1"}


def test_sigterm_ends_it_as_well(make_stack: MakeStack) -> None:
    stack = make_stack().start().wait_ready()
    stack.interrupt(signal.SIGTERM)
    assert stack.wait_exit() == 0


def test_a_closed_terminal_ends_it_as_well(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(REPOSITORY), "XDG_STATE_HOME": str(tmp_path)}
    argv = [*STAND_INS, "--port", str(free_port()), "--data-dir", str(tmp_path / "data")]
    with TerminalProgram(argv, env) as terminal:
        terminal.wait_for("Ctrl-C stops it.", timeout_s=60)
        tree = psutil.Process(terminal.pid).children(recursive=True)
        assert terminal.close() == 0
    wait_until(lambda: not any_alive(tree), timeout_s=1)


def test_under_nohup_it_outlives_its_terminal(make_stack: MakeStack) -> None:
    stack = make_stack(program=("nohup", *STAND_INS)).start().wait_ready()
    status = Path(f"/proc/{stack.process.pid}/status").read_text()
    [ignored] = re.findall(r"^SigIgn:\s*(\w+)$", status, re.MULTILINE)
    assert int(ignored, 16) & 1 << (signal.SIGHUP - 1)


def test_second_ctrl_c_gives_everybody_a_moment(make_stack: MakeStack) -> None:
    stack = make_stack("--shutdown-timeout-s", "60").start().wait_ready()
    tree = stack.processes()
    stack.role("frontend").suspend()
    stack.interrupt()
    wait_until(lambda: "stopping" in stack.err)
    stack.interrupt()
    assert stack.wait_exit(timeout_s=10) == 0
    wait_until(lambda: not any_alive(tree), timeout_s=3)


def test_third_ctrl_c_waits_for_nobody(make_stack: MakeStack) -> None:
    flags = ("--shutdown-timeout-s", "60", "--drain-timeout-s", "60")
    stack = make_stack(*flags).start().wait_ready()
    tree = stack.processes()
    stack.role("frontend").suspend()
    for words in ("stopping", "stopping now"):
        stack.interrupt()
        wait_until(lambda words=words: words in stack.err)  # type: ignore[misc]
    stack.interrupt()
    assert stack.wait_exit(timeout_s=10) == -signal.SIGINT
    wait_until(lambda: not any_alive(tree), timeout_s=3)


def test_kill_9_leaves_no_orphan(make_stack: MakeStack) -> None:
    stack = make_stack("--workers", "2").start().wait_ready()
    tree = stack.processes()
    assert len(tree) == 6  # nats-server, frontend, two workers with an engine each
    stack.process.kill()
    wait_until(lambda: not any_alive(tree), timeout_s=3)


async def test_a_dead_worker_is_announced_and_replaced(make_stack: MakeStack) -> None:
    stack = make_stack().start().wait_ready()
    nc = Client()
    await nc.connect(stack.nats_url)
    deaths: asyncio.Queue[str] = asyncio.Queue()

    async def note(message: object) -> None:
        deaths.put_nowait(message.data.decode())  # type: ignore[attr-defined]

    await nc.subscribe(Subjects().worker_died, cb=note)
    assert await round_trip(nc)
    worker = stack.role("worker")
    worker_id = worker.cmdline()[worker.cmdline().index("--worker-id") + 1]
    worker.kill()
    assert await asyncio.wait_for(deaths.get(), 2) == worker_id
    entries = await KvBucket(JetStream(nc), Subjects().workers_bucket).entries()
    assert not any(entry.key.endswith(worker_id) for entry in entries)
    await nc.close()

    wait_until(lambda: "its requests go on with another worker" in stack.err)
    wait_until(lambda: _has(stack, "worker"))
    assert worker_id not in stack.role("worker").cmdline()


def _has(stack: LocalStack, word: str) -> bool:
    try:
        return bool(stack.role(word).is_running())
    except AssertionError:
        return False


def test_a_dead_nats_server_comes_back_on_its_port(make_stack: MakeStack) -> None:
    stack = make_stack().start().wait_ready()
    port = int(stack.nats_url.rsplit(":", 1)[1])
    first = stack.role("nats-server")
    first.kill()
    wait_until(lambda: "nats was killed by signal 9; starting it again" in stack.err)
    wait_until(lambda: _answers(port))
    assert stack.role("nats-server").pid != first.pid


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def test_a_role_that_refuses_its_configuration_ends_all(make_stack: MakeStack) -> None:
    stack = make_stack(env={"STAND_IN_WORKER": "refuse"}).start()
    assert stack.wait_exit() == 2
    last = stack.err.splitlines()[-1]
    assert last == "jetflock serve: worker: the moon is in the wrong house; wait a month"


def test_a_role_that_keeps_dying_ends_all(make_stack: MakeStack) -> None:
    stack = make_stack("--detok-process", env={"STAND_IN_DETOK": "crash"}).start()
    assert stack.wait_exit() == 2
    assert "detok died 4 times before it was ready" in stack.err.splitlines()[-1]


async def test_an_existing_server_is_used_and_left_alone(
    make_stack: MakeStack, nats_server: NatsServer
) -> None:
    stack = make_stack("--nats-url", nats_server.url, "--prefix", "mine").start().wait_ready()
    assert not _has(stack, "nats-server")
    assert not (stack.folder / "data").exists()
    stack.interrupt()
    assert stack.wait_exit() == 0
    nc = Client()
    await nc.connect(nats_server.url)
    assert (await nc.jetstream().stream_info("mine_REQUESTS")).config.name == "mine_REQUESTS"
    await nc.close()


def test_a_restart_finds_its_store(make_stack: MakeStack) -> None:
    stack = make_stack().start().wait_ready()
    stack.process.kill()
    stack.process.wait()
    stack.start().wait_ready()


def refusal(stack: LocalStack) -> str:
    assert stack.start().wait_exit() == 2
    assert stack.out == ""
    assert len(stack.err.splitlines()) == 1, stack.err
    return stack.err


def test_a_taken_http_port_is_refused(make_stack: MakeStack) -> None:
    stack = make_stack()
    with socket.create_server(("127.0.0.1", stack.port)):
        assert "choose another by --port" in refusal(stack)


def test_a_taken_nats_port_is_refused(make_stack: MakeStack) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert "choose another by --nats-port" in refusal(make_stack("--nats-port", str(port)))


def test_a_missing_model_is_refused(make_stack: MakeStack, tmp_path: Path) -> None:
    assert "no model at" in refusal(make_stack(str(tmp_path / "nowhere")))
    assert "has no config.json" in refusal(make_stack(str(tmp_path)))
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0\0\0")
    assert "is cut: it ends within its head" in refusal(make_stack(str(tmp_path / "m.gguf")))
    (tmp_path / "n.gguf").touch()
    assert "holds 2 GGUF files, m.gguf, n.gguf" in refusal(make_stack(str(tmp_path)))
    for name in ("m.gguf", "n.gguf"):
        (tmp_path / name).unlink()
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").touch()
    assert "cannot read" in refusal(make_stack(str(tmp_path)))
    (tmp_path / "model.safetensors").unlink()
    assert "there are no weights" in refusal(make_stack(str(tmp_path)))


def test_damaged_weights_are_refused_before_anything_starts(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, folder)
    weights = folder / "model.safetensors"
    num_bytes = weights.stat().st_size
    with weights.open("r+b") as file:
        file.truncate(num_bytes - 1)
    stack = make_stack(str(folder))
    assert f"{weights} is cut: it has {num_bytes - 1} bytes, its head says" in refusal(stack)
    assert not (stack.folder / "data").exists()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    assert "names b.safetensors, which is missing" in refusal(make_stack(str(folder)))
    shutil.copytree(DEMO_MODEL, folder, dirs_exist_ok=True)
    (folder / "model.safetensors.index.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    unknown = {"quantization_config": {"quant_method": "aqlm"}}
    (folder / "config.json").write_text(json.dumps(config | unknown))
    assert "quantised by aqlm are not supported" in refusal(make_stack(str(folder)))


def test_a_gguf_file_is_served_and_told(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_small_llama(tmp_path / "Tiny-Q8_0.gguf")
    stack = make_stack(str(path), "--verbose").start().wait_ready()
    assert "serving Tiny-Q8_0 (" in stack.err
    assert "of GGUF Q8_0, 32 bits a weight; they are computed in 16 or 32 bits" in stack.err
    assert "Tiny-Q8_0" in stack.out
    stack.interrupt()
    assert stack.wait_exit() == 0


def test_an_unusable_data_folder_is_refused(make_stack: MakeStack, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stack = make_stack("--data-dir", str(tmp_path / "file" / "data"))
    assert "name another by --data-dir" in refusal(stack)


def test_a_data_folder_is_not_shared(make_stack: MakeStack) -> None:
    first = make_stack().start().wait_ready()
    second = make_stack("--data-dir", str(first.folder / "data"))
    assert f"in use by another jetflock serve (pid {first.process.pid})" in refusal(second)


def test_secrets_stay_off_the_command_lines(make_stack: MakeStack) -> None:
    env = {"JETFLOCK_API_KEY": "top-secret"}
    stack = make_stack(env=env, is_forked=False).start().wait_ready()  # /proc has its environment
    assert "top-secret" not in stack.out + stack.err
    assert "$JETFLOCK_API_KEY" in stack.out
    for process in stack.processes():
        assert "top-secret" not in " ".join(process.cmdline())
    assert stack.role("frontend").environ()["JETFLOCK_API_KEY"] == "top-secret"
    assert "JETFLOCK_API_KEY" not in stack.role("worker").environ()


def test_unknown_flags_get_a_suggestion(make_stack: MakeStack) -> None:
    stack = make_stack("--wrokers", "2", env={"COLUMNS": "200"}).start()
    assert stack.wait_exit() == 2
    assert "Did you mean --workers?" in stack.err + stack.out


def test_a_yaml_file_configures_it(make_stack: MakeStack, tmp_path: Path) -> None:
    (tmp_path / "jetflock.yaml").write_text("workers: 2\nmodel-name: from-yaml\n")
    stack = make_stack("--config", str(tmp_path / "jetflock.yaml")).start().wait_ready()
    assert "from-yaml" in stack.out
    assert "2 processes" in stack.out
    assert os.listdir(stack.folder / "data") != []


async def test_the_admin_plane_has_a_port_of_its_own(make_stack: MakeStack) -> None:
    port = free_port()
    stack = make_stack("--admin-port", str(port)).start().wait_ready()
    async with httpx.AsyncClient(timeout=10) as client:
        answer = await client.get(f"http://127.0.0.1:{port}/workers")
        assert answer.status_code == 200
        assert [worker["state"] for worker in answer.json()["workers"]] == ["ready"]
    stack.interrupt()
    assert stack.wait_exit() == 0


def test_an_open_admin_plane_is_refused(make_stack: MakeStack) -> None:
    flags = ("--admin-port", str(free_port()), "--admin-host", "0.0.0.0")
    stack = make_stack(*flags).start()
    assert stack.wait_exit() == 2
    assert "give --admin-key-file" in stack.err


async def _cards(stack: LocalStack) -> dict[str, tuple[bool, str]]:
    """Of each model: whether it is announced, and why its workers fail."""
    async with open_cluster(ClusterConfig(nats_url=stack.nats_url), "test") as cluster:
        catalog = ModelCatalog(cluster)
        heartbeats = await catalog.heartbeats()
        return {
            card.name: (card.is_announced, heartbeats.standing(card).failure)
            for card in await catalog.cards()
        }


async def test_what_it_served_last_time_is_withdrawn(make_stack: MakeStack, tmp_path: Path) -> None:
    """Whether it ended in order, or not."""
    data = ("--data-dir", str(tmp_path / "store"), "--workers", "0..1")
    for name, ends in (("first", LocalStack.interrupt), ("second", LocalStack.kill)):
        stack = make_stack(*data, "--model-name", name).start().wait_ready()
        assert (await _cards(stack))[name] == (True, ""), "at zero on purpose"
        ends(stack)
        stack.wait_exit()
    stack = make_stack(*data, "--model-name", "third").start().wait_ready()
    announced = {name: is_announced for name, (is_announced, _) in (await _cards(stack)).items()}
    assert announced == {"first": False, "second": False, "third": True}


async def test_workers_that_always_die_are_told_of(make_stack: MakeStack, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    stack = make_stack(env={"STAND_IN_WORKER": f"crash-while {broken}"}).start().wait_ready()
    broken.touch()
    stack.role("worker").kill()
    async for _ in Looks(30):
        if failure := (await _cards(stack))["jetflock-demo"][1]:
            break
    assert failure == "it ended with status 7: worker: the stars have gone out"
    broken.unlink()
    async for _ in Looks(60):
        if not (await _cards(stack))["jetflock-demo"][1]:
            break


async def test_adapters_can_be_asked_for_while_no_worker_runs(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    make_lora_files(tmp_path / "ad", 1.0)
    lora = f"ad={tmp_path / 'ad'}"
    stack = make_stack("--workers", "0..1", "--lora", lora).start().wait_ready()
    async with open_cluster(ClusterConfig(nats_url=stack.nats_url), "test") as cluster:
        [card] = await ModelCatalog(cluster).cards()
    assert [adapter.name for adapter in card.adapters] == ["ad"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--max-context-len", "1000000"), "--max-context-len 1000000 is more than the "),
        (("--device", "cuda"), "--device cuda needs an NVIDIA GPU"),
        (("--tp", "2"), "--tp 2 needs 2 NVIDIA GPUs, this machine shows 0"),
        (("--page-size", "0"), "page_size must be at least 1"),
    ],
)
def test_known_bad_starts_are_refused_before_anything_starts(
    make_stack: MakeStack, flags: tuple[str, ...], told: str
) -> None:
    if not set(flags).isdisjoint({"cuda", "--tp"}) and num_visible_gpus({}) != 0:
        pytest.skip("this machine has a driver")
    stack = make_stack(*flags)
    assert told in refusal(stack)
    assert not (stack.folder / "data").exists()


async def test_another_chat_template_is_taken_or_refused(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for message in messages %}<{{ message.content }}>{% endfor %}")
    stack = make_stack("--chat-template", str(file)).start().wait_ready()
    async with open_cluster(ClusterConfig(nats_url=stack.nats_url), "test") as cluster:
        catalog = ModelCatalog(cluster)
        [card] = await catalog.cards()
        bundle = await catalog.bundle(card.tokenizer_hash)
    assert bundle.chat_template == file.read_text()
    stack.interrupt()
    assert stack.wait_exit() == 0

    file.write_text("{% for message in messages %}")
    stack = make_stack("--chat-template", str(file))
    told = refusal(stack)
    assert f"chat_template '{file}': the model's chat template does not compile" in told
    missing = make_stack("--chat-template", str(tmp_path / "none.jinja"))
    assert "none.jinja': No such file or directory" in refusal(missing)


def test_without_a_terminal_logs_are_text(make_stack: MakeStack) -> None:
    stack = make_stack().start().wait_ready()
    stack.interrupt()
    assert stack.wait_exit() == 0
    lines = stack.err.splitlines()
    assert not [line for line in lines if line.partition("] ")[2].startswith("{")]
    assert "\x1b" not in stack.err


def test_json_logs_are_nothing_but_json(make_stack: MakeStack) -> None:
    stack = make_stack("--log-format", "json").start()
    wait_until(lambda: '"ready"' in stack.out)
    stack.interrupt()
    assert stack.wait_exit() == 0
    events = [json.loads(line) for line in (stack.out + stack.err).splitlines()]
    assert all(isinstance(event, dict) and event["event"] and event["role"] for event in events)
    [ready] = [event for event in events if event["event"] == "ready"]
    assert ready["url"] == f"http://127.0.0.1:{stack.port}"
    refused = make_stack("--log-format", "json", "--page-size", "0").start()
    assert refused.wait_exit() == 2
    assert "page_size" in json.loads(refused.err)["line"]
