"""The built wheel brings the command and every role, and nothing else into site-packages."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from jetflock import Client
from tests.deploy.local_stack import REPOSITORY, LocalStack
from tests.jetflock.test_real_stack import SCRIPTED

pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.timeout(240),
]


def run(*command: str | Path, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that has the wheel, and the dependencies of this one by a path file."""
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder),
        cwd=REPOSITORY,
    )
    [wheel] = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    site = site_packages(folder / "env")
    run(
        *(sys.executable, "-m", "pip", "--python", folder / "env" / "bin" / "python"),
        *("install", "--no-deps", "--no-index", "--quiet", wheel),
        cwd=folder,
    )
    # A plain path line: it does not run the .pth file of the editable install over there.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env"


def site_packages(env: Path) -> Path:
    [site] = (env / "lib").glob("python3*/site-packages")
    return site


def test_only_jetflock_is_added(installed: Path) -> None:
    added = {path.name for path in site_packages(installed).iterdir()}
    added -= {"dependencies.pth", "__pycache__"}
    assert {name for name in added if not name.endswith(".dist-info")} == {"jetflock"}
    assert len([name for name in added if name.endswith(".dist-info")]) == 1


def test_the_command_runs_anywhere(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "jetflock"
    assert run(command, "version", cwd=tmp_path).startswith("jetflock ")
    assert "--workers" in run(command, "serve", "--help", cwd=tmp_path)
    for role in ("frontend", "worker", "detok"):
        assert "--nats-url" in run(command, role, "--help", cwd=tmp_path)


def test_it_runs_its_own_files(installed: Path, tmp_path: Path) -> None:
    script = "import jetflock, jetflock.cli; jetflock.cli.find_components(); import worker.config"
    python = installed / "bin" / "python"
    code = f"{script}; print(jetflock.__file__, worker.config.__file__)"
    for file in run(python, "-c", code, cwd=tmp_path).split():
        assert file.startswith(str(site_packages(installed) / "jetflock"))


async def test_it_serves(installed: Path, tmp_path: Path) -> None:
    # nats-server lies beside the Python of this environment.
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    program = (str(installed / "bin" / "jetflock"), "serve")
    stack = LocalStack(tmp_path, *SCRIPTED, program=program, env={"PATH": path, "PYTHONPATH": ""})
    try:
        stack.start().wait_ready(60)
        async with Client(stack.nats_url) as client:
            result = await client.generate_async("Once", max_tokens=5, ignore_eos=True)
        assert len(result.choices[0].token_ids) == 5
        stack.interrupt()
        assert stack.wait_exit() == 0
    finally:
        stack.kill()
