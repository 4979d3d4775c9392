"""`jetflock doctor` finds what is wrong, and says nothing is when nothing is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from deploy.local.running_stack import RunningStack, announced
from jetflock.doctor import machine_checks
from jetflock.doctor.__main__ import DoctorConfig, of_what_runs
from jetflock.doctor.finding import Finding, Verdict
from jetflock.doctor.machine_checks import (
    disk_findings,
    gpu_findings,
    kv_disk_finding,
    machine_findings,
)
from jetflock.doctor.model_checks import model_findings
from jetflock.doctor.nats_checks import nats_findings
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.protocol.request import FEATURE_LEVEL
from shared.protocol.role_cards import LevelRecord
from shared.subjects import LEVEL_KEY
from tests.e2e.role_stack import DEMO_MODEL, MODEL_NAME, RoleStack
from tests.nats_server import NatsServer, free_port
from tests.stream_limits import fill, set_limit


def of(area: str, findings: Iterable[Finding]) -> Finding:
    """The finding of this area; none behind it is looked for."""
    return next(finding for finding in findings if finding.area == area)


async def nats(config: ClusterConfig) -> list[Finding]:
    return [finding async for finding in nats_findings(config)]


@pytest.mark.integration
@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_a_service_that_runs_is_well(shared_stack: RoleStack) -> None:
    findings = await nats(ClusterConfig(nats_url=shared_stack.nats.url))
    areas = {finding.area: finding for finding in findings}
    assert not [finding for finding in findings if finding.verdict is Verdict.FAIL]
    assert areas["streams"].text.startswith("all ")
    assert areas["protocol"].text == f"version 2, 4 partitions, feature level {FEATURE_LEVEL}"
    assert areas[f"workers of {MODEL_NAME}"].text == "1, ready"
    assert areas["frontend"].verdict is areas["detok"].verdict is Verdict.OK
    assert areas[f"queues of {MODEL_NAME}"].text == "6 consumers"


@pytest.mark.integration
async def test_an_empty_server_is_told_from_a_broken_one(nats_server: NatsServer) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    found = of("streams", await nats(config))
    assert (found.verdict, "'jf'" in found.text) == (Verdict.WARN, True)
    async with open_cluster(config, "test") as cluster:
        await cluster.js.api(f"STREAM.DELETE.{cluster.subjects.dead_stream}")
        found = of(cluster.subjects.dead_stream, await nats(config))
        assert (found.verdict, "jetflock setup" in found.remedy) == (Verdict.FAIL, True)
        assert of("frontend", await nats(config)).verdict is Verdict.WARN
        await cluster.js.api(f"STREAM.DELETE.{cluster.subjects.requests_stream}")
    async with open_cluster(ClusterConfig(nats_url=nats_server.url, prefix="other"), "test"):
        pass
    assert of("streams", await nats(config)).verdict is Verdict.WARN


@pytest.mark.integration
@pytest.mark.parametrize("which", ["tokens", "results", "responses", "batch"])
async def test_a_stream_that_is_nearly_full_is_told(nats_server: NatsServer, which: str) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as cluster:
        subjects = cluster.subjects
        stream, subject = {
            "tokens": (subjects.tokens_stream, subjects.tokens(0, "w")),
            "results": (subjects.results_stream, subjects.done("0" * 32)),
            "responses": (subjects.responses_stream, subjects.response("0" * 32)),
            "batch": (subjects.batch_stream, subjects.batch_line("batch_" + "0" * 32, 0)),
        }[which]
        await cluster.js.publish(subject, bytes(1 << 20))
        await fill(cluster.js, stream, 0.85)
        found = of(stream, await nats(config))
    assert found.verdict is Verdict.WARN
    assert found.text == "is 85% full: 1 MiB of 1.177 MiB"
    assert "raise its limit" in found.remedy


@pytest.mark.integration
async def test_a_store_that_an_earlier_version_made_without_a_limit_is_told(
    nats_server: NatsServer,
) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as cluster:
        await set_limit(cluster.js, "OBJ_jf_objects", -1)
        found = of("OBJ_jf_objects", await nats(config))
    assert found.verdict is Verdict.WARN
    assert found.remedy == "nats stream edit OBJ_jf_objects --max-bytes 1073741824"


@pytest.mark.integration
async def test_buckets_that_still_take_roll_ups_are_told_with_the_command(
    nats_server: NatsServer,
) -> None:
    config = ClusterConfig(nats_url=nats_server.url, prefix="other")
    async with open_cluster(config, "test") as cluster:
        assert not [finding for finding in await nats(config) if finding.area == "roll-ups"]
        for name in ("KV_other_files", "KV_other_owners"):
            made = (await cluster.js.api(f"STREAM.INFO.{name}"))["config"]
            await cluster.js.api(f"STREAM.UPDATE.{name}", made | {"allow_rollup_hdrs": True})
        found = of("roll-ups", await nats(config))
    assert found.verdict is Verdict.WARN
    assert {"KV_other_files", "KV_other_owners"} < set(found.text.replace(",", "").split())
    assert found.remedy == "jetflock setup --prefix other"
    argv = [sys.executable, "-m", *found.remedy.split(), "--nats-url", nats_server.url]
    await asyncio.to_thread(subprocess.run, argv, capture_output=True, check=True, timeout=60)
    assert not [finding for finding in await nats(config) if finding.area == "roll-ups"]


@pytest.mark.integration
async def test_an_account_that_may_store_too_little_is_told(tmp_path: Path) -> None:
    user = 'users: [{user: "a", password: "a"}]'
    account = f"A {{ jetstream {{ max_file: 3GB }}, {user} }}"
    server = NatsServer(tmp_path, config=f"accounts {{ {account} }}")
    server.start()
    try:
        config = ClusterConfig(nats_url=server.url, nats_user="a", nats_password="a")
        found = of("JetStream", await nats(config))
    finally:
        server.kill()
    assert found.verdict is Verdict.WARN
    assert found.text == "0 MiB stored, 0 MiB reserved, 15.38 GiB wanted of 3 GiB"
    assert "max_file to 15.38 GiB" in found.remedy


@pytest.mark.integration
async def test_who_listens_on_all_subjects_hides_deaths(nats_server: NatsServer) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as cluster:
        assert of("deaths", await nats(config)).verdict is Verdict.OK
        listener = await cluster.nc.subscribe(">")
        await cluster.nc.flush()
        found = of("deaths", await nats(config))
        assert found.verdict is Verdict.WARN
        assert "somebody listens on jf.here.>" in found.text
        await listener.unsubscribe()
        await cluster.nc.flush()
        assert of("deaths", await nats(config)).verdict is Verdict.OK


@pytest.mark.integration
async def test_a_queue_that_was_made_again_is_found(nats_server: NatsServer) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as cluster:
        name = cluster.subjects.requests_stream
        stream = (await cluster.js.api(f"STREAM.INFO.{name}"))["config"]
        await cluster.js.api(f"STREAM.DELETE.{name}")
        await cluster.js.api(f"STREAM.CREATE.{name}", stream)
    found = of("protocol", await nats(config))
    assert (found.verdict, "made again" in found.text) == (Verdict.FAIL, True)


@pytest.mark.integration
async def test_a_service_beyond_this_build_is_found(nats_server: NatsServer) -> None:
    config = ClusterConfig(nats_url=nats_server.url)
    async with open_cluster(config, "test") as cluster:
        revision = (await cluster.level.read()).revision
        await cluster.level.put(LevelRecord(FEATURE_LEVEL + 1), revision)
        found = of("protocol", await nats(config))
        assert found.verdict is Verdict.FAIL
        assert found.text.endswith(
            f"feature level {FEATURE_LEVEL + 1}, this build knows {FEATURE_LEVEL}"
        )
        meta = cluster.bucket(cluster.subjects.meta_bucket)
        await meta.put(LEVEL_KEY, b"\xc1")
        assert "cannot be read" in of("protocol", await nats(config)).text


@pytest.mark.e2e
def test_the_command_prints_a_remedy_and_fails() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "jetflock", "doctor", "./nowhere", "--nats-url", url]
    argv += ["--port", str(free_port()), "--nats-connect-timeout-s", "0.1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert "fail  model: there is no folder ./nowhere" in lines
    assert lines[lines.index("fail  model: there is no folder ./nowhere") + 1].startswith(
        "      remedy: "
    )
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert {"area", "verdict", "text", "remedy"} == set(report["findings"][0])


@pytest.mark.e2e
def test_a_port_that_another_program_holds_is_told() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
        found = of("port", machine_findings("127.0.0.1", port))
    assert found.verdict is Verdict.FAIL
    assert "--port" in found.remedy


def test_a_service_is_found_by_its_port_wherever_its_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with contextlib.ExitStack() as services:
        for port, folder in ((8123, "/srv/one"), (8124, "/srv/two")):
            url, nats_url = f"http://127.0.0.1:{port}", f"nats://127.0.0.1:{port - 4000}"
            stack = RunningStack(port, url, nats_url, "jf", "m", 0.0, folder)
            services.enter_context(announced(stack))
        found = of_what_runs(DoctorConfig(port=8124))
    assert (found.nats_url, found.data_dir) == ("nats://127.0.0.1:4124", Path("/srv/two"))


def test_a_disk_without_room_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    findings = list(disk_findings(folder, ClusterConfig(log_max_bytes=1 << 60)))
    assert [finding.verdict for finding in findings] == [Verdict.WARN, Verdict.OK]
    assert not folder.exists()


def test_a_folder_for_keys_and_values_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kv"
    assert kv_disk_finding(folder).verdict is Verdict.OK
    folder.mkdir(mode=0o750)
    assert "is not this user's alone" in kv_disk_finding(folder).text
    folder.chmod(0o700)
    (folder / "a.page").write_bytes(bytes(3 << 20))
    (folder / "b.page").symlink_to("gone")  # as one that a worker removes meanwhile
    found = kv_disk_finding(folder)
    assert (found.verdict, f"3 MiB in {folder}" in found.text) == (Verdict.OK, True)
    monkeypatch.setattr(machine_checks, "KV_DISK_FREE_BYTES", 1 << 60)
    assert kv_disk_finding(folder).verdict is Verdict.WARN


@pytest.mark.e2e
def test_a_whole_model_is_served_and_a_cut_one_is_told(tmp_path: Path) -> None:
    findings = list(model_findings(str(DEMO_MODEL)))
    assert {finding.verdict for finding in findings} == {Verdict.OK}
    assert "LlamaForCausalLM by our" in of("engine", findings).text

    copy = tmp_path / "copy"
    shutil.copytree(DEMO_MODEL, copy)
    weights = next(copy.glob("*.safetensors"))
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 1)
    found = of("weights", model_findings(str(copy)))
    assert (found.verdict, "its head says" in found.text) == (Verdict.FAIL, True)
    index = {"weight_map": {"a": weights.name, "b": "model-2.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    weights.unlink()
    assert "is missing" in of("weights", model_findings(str(copy))).text
    (copy / "config.json").write_text("{")
    assert of("config.json", model_findings(str(copy))).verdict is Verdict.FAIL


@pytest.mark.e2e
def test_torch_is_not_imported() -> None:
    script = "import sys, jetflock.doctor.__main__; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.e2e
def test_each_gpu_is_told_and_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what nvidia-smi prints; torch of the development tools is built for processors."""
    lines = [
        "0, NVIDIA H100 80GB HBM3, 580.65.06, 9.0, 80000, 81559",
        "1, Tesla V100-SXM2-16GB, 580.65.06, 7.0, [N/A], 16384",
    ]
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = {finding.area: finding for finding in gpu_findings()}
    assert found["GPU 0"].verdict is Verdict.OK
    assert found["GPU 0"].text == (
        "NVIDIA H100 80GB HBM3, driver 580.65.06, compute capability 9.0, 78.1 of 79.6 GiB free"
    )
    assert found["GPU 1"].verdict is Verdict.WARN
    assert found["GPU 1"].text.endswith("too old for bfloat16")
    assert found.keys() == {"GPU 0", "GPU 1", "GPU: torch", "GPU: kernels"}
