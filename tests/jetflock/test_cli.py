"""The `jetflock` command finds, suggests, and says what is missing."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from jetflock import cli
from tests.deploy.local_stack import REPOSITORY


def run(*argv: str, columns: int = 200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jetflock", *argv],
        cwd=REPOSITORY,
        env={"COLUMNS": str(columns), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_is_short_and_names_every_command() -> None:
    text = run("--help").stdout
    assert len(text.splitlines()) <= 34
    for name in (*cli.COMMANDS, "version"):
        assert f" {name} " in text
    assert run().stdout == text


def test_version() -> None:
    assert run("version").stdout == run("--version").stdout == f"jetflock {version('jetflock')}\n"


def test_a_misspelt_command_gets_a_suggestion() -> None:
    done = run("srve")
    assert done.returncode == 2
    assert 'Did you mean "serve"?' in done.stderr + done.stdout


def test_serve_shows_a_screenful_or_everything() -> None:
    short = run("serve", "--help", columns=80).stdout
    assert len(short.splitlines()) <= 25
    assert "--workers" in short
    assert "--ack-wait-s" not in short
    everything = run("serve", "--help-all").stdout
    for word in ("--workers", "--ack-wait-s", "--max-running", "JETFLOCK_PORT", "─ Frontend ─"):
        assert word in everything
    assert "--worker-id" not in everything


@pytest.mark.parametrize("role", ["frontend", "worker", "detok"])
def test_roles_explain_themselves(role: str) -> None:
    done = run(role, "--help")
    assert done.returncode == 0
    assert "--nats-url" in done.stdout


def test_a_missing_library_is_one_sentence() -> None:
    script = "import sys; sys.modules['starlette'] = None; from jetflock import cli; "
    done = subprocess.run(
        [sys.executable, "-c", script + "cli.run_command('frontend', [])"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "jetflock frontend needs the Python package 'starlette', which is not installed: "
        "pip install 'jetflock[frontend]'\n"
    )


def test_importing_the_package_is_cheap() -> None:
    script = (
        "import sys, jetflock; print([m for m in ('nats', 'torch', 'shared') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
