"""A fresh clone, an empty home, no environment on PATH: what is printed works as it is printed.

`make test-newcomer` installs everything anew and tells time and megabytes; without it the clone
uses what is installed here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.local_stack import REPOSITORY
from tests.eventually import Looks
from tests.nats_server import free_port

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.timeout(900)]

IS_WHOLE = os.environ.get("JETFLOCK_TEST_NEWCOMER") == "1"
PATH = "/usr/local/bin:/usr/bin:/bin"
MAX_MB = 1400
READY_S = 600.0 if IS_WHOLE else 90.0
# Where packages come from is the machine's business; a newcomer has it in files of the system.
KEPT = [name for name in os.environ if name.startswith(("PIP_", "SSL_", "UV_"))]


@dataclass(frozen=True)
class Newcomer:
    """Who types commands in a shell of their own."""

    home: Path
    checkout: Path

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT}
        return {"HOME": str(self.home), "PATH": PATH, "LANG": "C.UTF-8"} | kept

    def types(self, line: str, stdin: str = "", cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=cwd or self.checkout,
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    home, checkout = tmp_path / "home", tmp_path / "jetflock"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, checkout], check=True)
    if not IS_WHOLE:
        _lend_environment(checkout / ".venv", checkout / "pyproject.toml")
    return Newcomer(home, checkout)


def _lend_environment(venv: Path, project: Path) -> None:
    """What `make serve` would make, of links to what runs this test."""
    venv.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if not entry.name.startswith(".installed"):
            (venv / entry.name).symlink_to(entry)
    stamp = venv / ".installed-serve"
    stamp.touch()
    later = project.stat().st_mtime + 10
    os.utime(stamp, (later, later))


@dataclass(frozen=True)
class Served:
    """What `make serve` has printed when it was ready."""

    out: str
    elapsed_s: float
    port: int

    @property
    def commands(self) -> list[str]:
        lines = [line.strip() for line in self.out.splitlines()]
        return [line for line in lines if line.startswith("curl ") or re.search(r"\bchat\b", line)]


@pytest.fixture
def served(newcomer: Newcomer, tmp_path: Path) -> Iterator[Served]:
    port, out, err = free_port(), tmp_path / "out", tmp_path / "err"
    began_at = time.monotonic()
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            ["make", "serve", f"PYTHON={sys.executable}", f"ARGS=--port {port}"],
            cwd=newcomer.checkout,
            env=newcomer.environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        for _ in Looks(READY_S, err.read_text):
            if "Ctrl-C stops it." in out.read_text():
                break
            assert process.poll() is None, err.read_text()
        yield Served(out.read_text(), time.monotonic() - began_at, port)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)


def test_what_is_printed_works_as_it_is_printed(newcomer: Newcomer, served: Served) -> None:
    curl, chat = served.commands
    answer = json.loads(newcomer.types(curl, cwd=Path("/")))
    assert answer["choices"][0]["message"]["content"]
    assert newcomer.types(chat, stdin="Name three colours.\n", cwd=Path("/")).strip()

    # As README and quick-start go on, in a second terminal.
    activated = "source .venv/bin/activate && "
    assert "jetflock-demo" in newcomer.types(f"{activated}jetflock ps")
    assert newcomer.types(f"{activated}jetflock chat 'Who are you?'").strip()
    assert "ready" in newcomer.types(f"{activated}jetflock top --once")
    assert "jetflock-demo" in newcomer.types(f"{activated}jetflock models")
    script = "import jetflock; print(jetflock.Client.__name__)"
    assert newcomer.types(f'{activated}python -c "{script}"') == "Client\n"

    if IS_WHOLE:
        venv = newcomer.checkout / ".venv"
        num_mb = int(newcomer.types(f"du -sm {venv}").split()[0])
        print(f"\nready after {served.elapsed_s:.0f} s from a clone; .venv has {num_mb} MB")
        assert num_mb < MAX_MB
        assert not list(venv.glob("lib/python3*/site-packages/triton"))
