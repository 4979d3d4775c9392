"""An operator's machine has the wheel and what it depends on, and no torch or tokenizers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.local_stack import REAL_ROLES, REPOSITORY, LocalStack
from tests.jetflock.test_real_stack import SCRIPTED

# By day tests/deploy/test_role_images.py looks at what is said to be needed.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]

MAX_MIB = 120
ABSENT = ("torch", "tokenizers", "transformers", "numpy", "starlette", "uvicorn", "llguidance")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone, and its dependencies as pip finds them."""
    folder = tmp_path_factory.mktemp("base")
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        cwd=REPOSITORY,
    )
    [wheel] = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    run(
        *(sys.executable, "-m", "pip", "--python", folder / "env" / "bin" / "python"),
        *("install", "--quiet", "--no-compile", wheel),
        cwd=folder,
    )
    return folder / "env"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    stack = LocalStack(tmp_path_factory.mktemp("stack"), *SCRIPTED, program=REAL_ROLES)
    yield stack.start().wait_ready(60)
    stack.kill()


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    done = _done(*command, cwd=cwd, **environ)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def _done(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    # What a command has compiled, the next one need not.
    dropped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if name not in dropped} | environ
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120
    )


def test_it_is_small_and_has_no_torch(base: Path) -> None:
    [site] = (base / "lib").glob("python3*/site-packages")
    files = [file for file in site.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    num_mib = sum(file.stat().st_size for file in files) / (1 << 20)
    assert num_mib < MAX_MIB
    assert not [name for name in ABSENT if (site / name).exists()]


def test_commands_that_look_at_a_service_work(
    base: Path, stack: LocalStack, tmp_path: Path
) -> None:
    command = base / "bin" / "jetflock"
    environ = {
        "JETFLOCK_NATS_URL": stack.nats_url,
        "JETFLOCK_URL": f"http://127.0.0.1:{stack.port}",
    }

    def jetflock(*words: str) -> str:
        return run(command, *words, cwd=tmp_path, **environ)

    assert [worker["state"] for worker in json.loads(jetflock("top", "--json"))["workers"]] == [
        "ready"
    ]
    assert "jetflock-demo" in jetflock("models")
    assert "ready" in jetflock("admin", "workers")
    assert json.loads(jetflock("admin", "stats"))["queues"]
    jetflock("dead", "list")
    assert "ready" in jetflock("events")
    assert "nats-url" in jetflock("config", "show", "worker", "MODEL")
    assert "workers" in jetflock("config", "show", "autoscale", "MODEL")
    assert json.loads(jetflock("setup", "--model-name", "jetflock-demo"))["consumers"]
    assert "--scale-idle-s" in jetflock("autoscale", "--help-all")
    assert "complete" in jetflock("completion", "bash")
    jetflock("batch", "list")
    assert "green" not in jetflock("chat", "--max-tokens", "3", "Hello")


def test_a_role_that_needs_more_says_how_to_get_it(base: Path, tmp_path: Path) -> None:
    for name in ("serve", "frontend", "detok"):
        done = _done(base / "bin" / "jetflock", name, cwd=tmp_path)
        assert done.returncode == 2, name
        assert f"{base}/bin/python -m pip install 'jetflock[" in done.stderr, name
        assert "file://" in done.stderr, name


def test_a_model_is_looked_at_as_far_as_possible(base: Path, tmp_path: Path) -> None:
    checkpoint = REPOSITORY / "deploy" / "demo_model" / "checkpoint"
    done = _done(base / "bin" / "jetflock", "doctor", str(checkpoint), cwd=tmp_path)
    assert "not tried: tokenizers is missing" in done.stdout
