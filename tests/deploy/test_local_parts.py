"""The small parts of `jetflock serve`, each by itself."""

from __future__ import annotations

import dataclasses
import io
import os
import shlex
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.local import preflight
from deploy.local.data_folder import DataFolder, default_data_dir
from deploy.local.gpu_share import gpu_share
from deploy.local.nats_child import is_worth_showing
from deploy.local.ports import check_port, free_port
from deploy.local.progress import StartupProgress, amount_done, time_left_s
from deploy.local.ready_block import computing_words, curl, ready_block
from deploy.local.role_launches import COMPONENTS, RoleLaunches, RolePrograms
from deploy.local.serve_config import ServeConfig, demo_model
from deploy.local.start_times import StartTimes
from deploy.local.terminal import Terminal
from deploy.processes.kept_process import Backoff, ChildProcess, StartGate
from frontend.config import FrontendConfig
from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.machine.gpu_driver import TorchBuild
from shared.protocol.role_cards import GpuCard, WorkerCard, WorkerState
from shared.storage.byte_budget import ByteBudget
from worker.config import WorkerConfig


def make_launches(config: ServeConfig, **environ: str) -> RoleLaunches:
    return RoleLaunches(config, Path("/m"), "json", RolePrograms(), environ)


def test_backoff_doubles_up_to_five_seconds_and_forgets_after_a_long_life() -> None:
    backoff = Backoff()
    assert [backoff.next_delay_s(0.1) for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.next_delay_s(60.0) == 0.2


def test_starts_that_fail_come_ever_more_rarely() -> None:
    backoff = Backoff()
    delays = [backoff.next_delay_s(None) for _ in range(12)]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0, 60.0]
    assert backoff.num_failed_starts == 12
    assert backoff.next_delay_s(0.1) == 5.0, "it served, if not for long"
    assert backoff.num_failed_starts == 0


def test_roles_get_what_differs_from_their_defaults() -> None:
    config = ServeConfig(max_running=7, cors_origins=("a", "b"), queue_max_msgs=5)
    launches = make_launches(config.completed("demo"))
    worker, frontend = launches.worker(0, "both")().env, launches.frontend().env
    assert worker["JETFLOCK_MAX_RUNNING"] == "7"
    assert worker["JETFLOCK_QUEUE_MAX_MSGS"] == frontend["JETFLOCK_QUEUE_MAX_MSGS"] == "5"
    assert frontend["JETFLOCK_CORS_ORIGINS"] == "a b"
    assert "JETFLOCK_CORS_ORIGINS" not in worker
    assert "JETFLOCK_PAGE_SIZE" not in worker


@pytest.mark.parametrize(
    ("workers", "decode_workers", "expected"),
    [
        (3, 2, {"decode": "2", "prefill": "1"}),
        ("0..4", "0..1", {"decode": "0 to 1", "prefill": "0 to 3"}),
    ],
)
def test_some_workers_decode_and_the_others_compute_prompts(
    workers: int | str, decode_workers: int | str, expected: dict[str, str]
) -> None:
    config = ServeConfig(workers=workers, decode_workers=decode_workers, kv_disk_dir="/kv")
    config = config.completed("demo")
    assert {role: str(each) for role, each in config.ranges.items()} == expected
    envs = [make_launches(config).worker(0, role)().env for role in config.ranges]
    assert [env["JETFLOCK_ROLE"] for env in envs] == list(expected)
    assert {env["JETFLOCK_KV_DISK_DIR"] for env in envs} == {"/kv"}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"workers": 2}, "of workers=2 leaves 0 to 0"),
        ({"workers": "0..4"}, "of workers=0..4 leaves -2 to 2"),
        ({"workers": 3, "decode_workers": "0..2"}, "of workers=3 leaves 3 to 1"),
        ({"workers": 3, "kv_disk_dir": None}, "needs kv_disk_dir"),
        ({"workers": 3, "role": "decode"}, "leave role=decode out"),
    ],
)
def test_roles_that_cannot_be_given_are_refused(changes: dict[str, Any], what: str) -> None:
    config = dataclasses.replace(ServeConfig(decode_workers=2, kv_disk_dir="/kv"), **changes)
    with pytest.raises(ConfigError, match=f"decode_workers=.*{what}"):
        config.completed("demo")


def test_variables_of_serve_itself_do_not_reach_the_roles() -> None:
    launches = make_launches(ServeConfig().completed("m"), JETFLOCK_CONFIG="f", JETFLOCK_PORT="1")
    env = launches.detok().env
    assert "JETFLOCK_CONFIG" not in env
    assert "JETFLOCK_PORT" not in env


def test_each_launch_has_an_id_of_its_own() -> None:
    launch = make_launches(ServeConfig().completed("m")).worker(0, "both")
    first, second = launch(), launch()
    assert first.id != second.id
    assert first.command[-2:] == ["--worker-id", first.id]


def test_each_process_has_a_metrics_port_of_its_own() -> None:
    launches = make_launches(ServeConfig(metrics_port=9000).completed("m"))
    ports = [
        launch.env["JETFLOCK_METRICS_PORT"]
        for launch in (launches.detok(), launches.worker(0, "both")(), launches.worker(1, "both")())
    ]
    assert ports == ["9000", "9001", "9002"]


def test_children_find_the_roles() -> None:
    env = make_launches(ServeConfig().completed("m"), PYTHONPATH="/x").detok().env
    assert env["PYTHONPATH"] == f"{COMPONENTS}{os.pathsep}/x"
    assert (COMPONENTS / "shared" / "config.py").is_file()


@pytest.mark.e2e
def test_children_take_no_modules_from_the_folder_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "nats.py").write_text("raise SystemExit('another nats')")
    launch = make_launches(ServeConfig().completed("m")).detok()
    done = subprocess.run(
        [*launch.command, "--help"],
        cwd=tmp_path,
        env={**os.environ, **launch.env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    assert ServeConfig(workers=3).completed("m").num_threads == 2
    assert ServeConfig(workers=1).completed("m").num_threads is None
    assert ServeConfig(workers=3, num_threads=5).completed("m").num_threads == 5


@pytest.mark.parametrize(
    ("model", "name"),
    [(demo_model(), "jetflock-demo"), ("owner/name", "owner/name"), ("/usr/lib", "lib")],
)
def test_the_model_is_named_after_its_source(model: str, name: str) -> None:
    assert ServeConfig().completed(model).model_name == name
    assert ServeConfig(model_name="mine").completed(model).model_name == "mine"


def test_no_worker_is_refused() -> None:
    with pytest.raises(ConfigError, match="--workers is 0"):
        ServeConfig(workers=0).completed("m")


def test_every_flag_of_a_role_is_a_flag_of_serve() -> None:
    names = {field.name for field in fields(ServeConfig)}
    assert names >= {field.name for field in (*fields(FrontendConfig), *fields(WorkerConfig))}


def test_the_store_fits_a_small_disk() -> None:
    wanted = ByteBudget(100, 800, 90, 10, 20, 6, 50, 9, 7, 8)
    assert wanted.that_fits(10_000) == wanted
    assert wanted.that_fits(80) == ByteBudget(10, 40, 5, 5, 5, 1, 3, 0, 1, 0)
    for free_bytes in (1 << 28, 3 << 30, 12 << 30):
        fitting = ByteBudget.of(ClusterConfig()).that_fits(free_bytes)
        assert fitting.total < free_bytes, "a full disk stops the queue for good"


def test_routine_lines_of_the_server_are_not_shown() -> None:
    assert not is_worth_showing("[1] 2026/11/20 13:00:00.0 [INF] Server is ready")
    assert is_worth_showing("[1] 2026/11/20 13:00:00.0 [ERR] disk full")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_MODULES_OF_EXTRA", {"worker": ("no_such_module",)})
    with pytest.raises(ConfigError, match=r"'no_such_module'.*\[serve\]"):
        preflight.check_extras()


def test_a_data_folder_is_locked_until_released(tmp_path: Path) -> None:
    with (
        DataFolder.lock(tmp_path / "data"),
        pytest.raises(ConfigError, match=f"pid {os.getpid()}"),
    ):
        DataFolder.lock(tmp_path / "data")
    DataFolder.lock(tmp_path / "data").unlock()


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataFolder, "free_bytes", 1 << 20)
    with pytest.raises(ConfigError, match="1 MiB free"):
        DataFolder.lock(tmp_path)


def test_each_port_has_a_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_data_dir(8001) == Path("/state/jetflock/port-8001")


def test_ports_are_checked() -> None:
    check_port("127.0.0.1", free_port(), "--port")
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="stop what holds the port"),
    ):
        check_port("127.0.0.1", taken.getsockname()[1], "--port")
    with pytest.raises(ConfigError, match="--port is 70000"):
        check_port("127.0.0.1", 70000, "--port")
    with pytest.raises(ConfigError, match=r"cannot listen on no-such-host.*an address of this"):
        check_port("no-such-host.invalid", 8000, "--port")
    with pytest.raises(ConfigError, match="--host must be an address of this machine"):
        check_port("203.0.113.7", 8000, "--port")


def test_the_ready_block_can_be_read_aloud() -> None:
    config = ServeConfig(host="0.0.0.0", nats_url="nats://n:1", model_name="it's", workers=2)
    block = ready_block(config, has_own_nats=False, elapsed_s=1.23)
    assert "jetflock is ready (1.2 s)" in block
    assert "http://127.0.0.1:8000" in block
    assert "nats://n:1" in block
    assert "Data" not in block


def test_the_ready_block_says_where_it_computes() -> None:
    config = ServeConfig(model_name="m", workers=1)
    loading = WorkerCard("w", "p", "m", "r", WorkerState.READY)
    cpu = msgspec.structs.replace(loading, dtype="bfloat16", kernel_set="avx512-bf16")
    gpu = GpuCard("NVIDIA L4", "bfloat16", "bfloat16", "triton", num_gpus=2)
    for card, words in (
        (loading, "without a model"),
        (cpu, "on the processor in bfloat16 (avx512-bf16)"),
        (msgspec.structs.replace(cpu, gpu=gpu), "on 2 x NVIDIA L4 in bfloat16"),
    ):
        block = ready_block(config, True, 1.0, computing=computing_words(card))
        assert f"Workers  1 process, {words}\n" in block


def test_a_gpu_that_torch_cannot_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    preflight.check_cuda({}, tmp_path)  # no GPU
    node = tmp_path / "dev/nvidiactl"
    node.parent.mkdir()
    node.touch()
    build = TorchBuild.installed()
    assert build is not None
    if build.cuda is None:
        with pytest.raises(ConfigError, match=r"an NVIDIA driver, and torch .* --device cpu"):
            preflight.check_cuda({}, tmp_path)
    preflight.check_cuda({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)


def test_with_an_admin_key_the_page_of_the_stack_gives_orders() -> None:
    def completed(**flags: Any) -> ServeConfig:
        return ServeConfig(port=8000, admin_port=8001, **flags).completed(demo_model())

    config = completed(admin_key="secret", host="0.0.0.0")
    origins = ["http://127.0.0.1:8000", "http://localhost:8000"]
    assert (config.admin_url, list(config.admin_page_origin)) == ("http://127.0.0.1:8001", origins)
    launches = make_launches(config, JETFLOCK_ADMIN_KEY="another")
    assert launches.frontend().env["JETFLOCK_ADMIN_URL"] == "http://127.0.0.1:8001"
    argv = launches.admin().command
    assert [argv[at + 1] for at, word in enumerate(argv) if word.endswith("-origin")] == origins
    assert launches.admin().env["JETFLOCK_ADMIN_KEY"] == "secret"
    for launch in (launches.frontend(), launches.detok(), launches.worker(0, "both")()):
        assert "JETFLOCK_ADMIN_KEY" not in launch.env
    assert "drains and kills workers" in ready_block(config, has_own_nats=False, elapsed_s=1.0)
    named = completed(admin_key="k", admin_url="https://a", admin_page_origin=("https://p",))
    assert (named.admin_url, named.admin_page_origin) == ("https://a", ("https://p",))
    without_key = completed()
    assert (without_key.admin_url, without_key.admin_page_origin) == ("", ())


def test_the_curl_survives_a_shell() -> None:
    words = shlex.split(curl(ServeConfig(model_name="it's", api_key=("k",))))
    assert words[1] == "http://127.0.0.1:8000/v1/chat/completions"
    assert "Authorization: Bearer $JETFLOCK_API_KEY" in words
    assert '"model": "it\'s"' in words[-1]


def test_progress_is_a_line_a_phase_when_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    progress = StartupProgress(Terminal(), StartTimes())
    progress.update("worker-1", "load weights", 0.1)
    progress.update("worker-1", "load weights", 0.9)
    progress.finish("worker-1")
    lines = [line.rpartition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["jetflock: worker-1: load weights", "jetflock: worker-1: ready"]


def test_bytes_and_time_left_are_told_as_soon_as_they_are_known() -> None:
    assert time_left_s(elapsed_s=3.0, gained=0.01, fraction=0.4) is None
    assert time_left_s(elapsed_s=3.0, gained=0.2, fraction=0.4) == pytest.approx(9.0)
    assert amount_done(0.25, 2_500_000_000, 14.4) == "0.6 of 2.5 GB, 14 s left"
    assert amount_done(1.0, 5_700_000, None) == "5.7 of 5.7 MB"


def test_times_of_a_start_hold_what_parts_measured_themselves() -> None:
    times = StartTimes()
    times.begin("worker-1")
    times.begin("nats")
    times.end("nats")
    times.end("worker-1", {"import torch": 1.25})
    rows = [line[:24].strip() for line in times.table().splitlines()]
    assert rows == ["start-up, s", "this command", "worker-1", "import torch", "nats"]
    assert times.table().splitlines()[3].endswith(" 1.25")


@pytest.mark.e2e
async def test_a_gate_lets_children_go_on_together() -> None:
    gate = StartGate()
    script = "from worker.start_gate import wait_at_gate; wait_at_gate(); print('through')"
    said: list[str] = []
    command = [sys.executable, "-c", script]
    early = await ChildProcess.start(command, os.environ, said.append, gate.stdin)
    assert early.is_running
    gate.open()
    late = await ChildProcess.start(command, os.environ, said.append, gate.stdin)
    assert (await early.wait(), await late.wait()) == (0, 0)
    assert said == ["through", "through"]


def test_lines_of_a_role_bear_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().log_sink("detok")("[bold]hello")
    assert capsys.readouterr().err == "[detok] [bold]hello\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_on_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, io.TextIOWrapper(full, write_through=True))
        terminal = Terminal(as_json=as_json)
        terminal.log_sink("detok")("hello")
        terminal.say("stopping")
        terminal.show("ready", {"event": "ready"})


def test_each_worker_has_gpus_of_its_own(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    none, visible = tmp_path / "none", "CUDA_VISIBLE_DEVICES"
    assert [gpu_share({}, idx, 1, tmp_path) for idx in (0, 3)] == [{visible: "0"}, {visible: "3"}]
    assert gpu_share({}, 1, 2, tmp_path) == {visible: "2,3"}
    assert gpu_share({visible: "5, GPU-8a,7"}, 1, 1, tmp_path) == {visible: "GPU-8a"}
    assert gpu_share({}, 4, 1, tmp_path) == {visible: "0"}, "more workers than GPUs"
    for few in ({}, {visible: "5"}):
        assert gpu_share(few, 1, 1, none) == {}, "there is no choice"
    assert gpu_share({}, 0, 8, tmp_path) == {}, "the engine says how many there are"


def test_a_worker_on_a_processor_is_given_no_gpu() -> None:
    gpus = {"CUDA_VISIBLE_DEVICES": "0,1"}
    on_any, on_cpu = (
        make_launches(ServeConfig(device=device).completed("m"), **gpus).worker(1, "both")().env
        for device in ("auto", "cpu")
    )
    assert on_any["CUDA_VISIBLE_DEVICES"] == "1"
    assert on_cpu["CUDA_VISIBLE_DEVICES"] == "0,1"
