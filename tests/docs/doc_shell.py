"""A folder, a shell and a running service, in which the commands of a page do what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.deploy.local_stack import REPOSITORY, LocalStack
from tests.docs.markdown_page import CodeBlock
from tests.eventually import Looks

_BLOCK_TIMEOUT_S = 120.0
_TAIL_CHARACTERS = 600
_ACTIVATE = ".venv/bin/activate"
FROM_SCRATCH = ("README.md", "quick-start.md")  # read in a terminal where nothing was done yet
_CLIENT = Path(__file__).with_name("command_client.py")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a block ended."""

    status: int
    output: str
    elapsed_s: float

    @property
    def tail(self) -> str:
        return self.output.strip()[-_TAIL_CHARACTERS:]


class DocShell:
    """Pages are written for the default ports; here they find those of `stack`.

    Each page has a folder of its own, in which the repository's files are links: what one block
    writes the next one finds, and the repository stays as it is.
    """

    def __init__(self, stack: LocalStack, folder: Path, admin_port: int) -> None:
        self._folder = folder
        self._socket = folder / "command-server"
        nats_port = stack.nats_url.rsplit(":", 1)[1]
        self._ports = {"8000": str(stack.port), "8001": str(admin_port), "4222": nats_port}
        self._process: subprocess.Popen[bytes] | None = None
        self._environ = _environment(folder, self._socket, stack)
        self._helps: dict[tuple[str, ...], Outcome] = {}
        self._activated: set[Path] = set()  # pages whose reader has activated the environment

    def __enter__(self) -> Self:
        commands = self._folder / "bin"
        commands.mkdir(parents=True)
        interpreter = f"#!{sys.executable} -IS\n"
        for name in ("jetflock", "run-python"):
            (commands / name).write_text(interpreter + _CLIENT.read_text())
            (commands / name).chmod(0o755)
        (self._folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.command_server", str(self._socket)],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        )
        for _ in Looks(_BLOCK_TIMEOUT_S, "the command server does not start"):
            if self._socket.exists():
                break
            assert self._process.poll() is None, "the command server has ended"
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def run(self, block: CodeBlock) -> Outcome:
        """The whole block, by one shell or one interpreter; it stops at what fails."""
        name = f"block-{block.line}"
        if _ACTIVATE in block.script:
            self._activated.add(block.page)
        if block.language == "python":
            (self._page_folder(block) / f"{name}.py").write_text(self._localised(block.script))
            return self._run_typed(block, f"exec run-python {name}.py")
        return self._run_typed(block, self._localised(block.script))

    def _run_typed(self, block: CodeBlock, script: str) -> Outcome:
        """In a terminal as the page's reader has it: of a newcomer, until the page activates."""
        is_new = block.page.name in FROM_SCRATCH and block.page not in self._activated
        before = "" if is_new or _ACTIVATE in script else f"source {_ACTIVATE}\n"
        return self._run(before + script, self._page_folder(block))

    def help_of(self, words: tuple[str, ...]) -> Outcome:
        """All flags of a command."""
        if words not in self._helps:
            jetflock = str(self._folder / "bin" / "jetflock")
            script = shlex.join([jetflock, *words, "--help-all"])
            self._helps[words] = self._run(script, self._folder)
        return self._helps[words]

    def _run(self, script: str, folder: Path) -> Outcome:
        begin = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            cwd=folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_BLOCK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            output += f"\nit did not end within {_BLOCK_TIMEOUT_S:g} s"
        return Outcome(process.returncode, output, time.monotonic() - begin)

    def _page_folder(self, block: CodeBlock) -> Path:
        folder = self._folder / block.page.stem
        if not folder.exists():
            folder.mkdir()
            for entry in REPOSITORY.iterdir():
                if not entry.name.startswith("."):
                    (folder / entry.name).symlink_to(entry)
            # As of a real environment, whose jetflock is the command client.
            activate = folder / _ACTIVATE
            activate.parent.mkdir(parents=True)
            bins = f"{self._folder / 'bin'}:{Path(sys.executable).parent}"
            activate.write_text(f'export PATH="{bins}:$PATH"\n')
        return folder

    def _localised(self, script: str) -> str:
        pattern = rf"(127\.0\.0\.1|localhost):({'|'.join(self._ports)})\b"
        return re.sub(pattern, lambda found: f"{found[1]}:{self._ports[found[2]]}", script)


def _environment(folder: Path, server: Path, stack: LocalStack) -> dict[str, str]:
    """What a person has who installed jetflock; commands that need NATS find the stack's."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("JETFLOCK_")}
    # No environment is on PATH that the reader has not put there.
    folders = [
        each for each in ours["PATH"].split(os.pathsep) if not Path(each, "jetflock").exists()
    ]
    path = os.pathsep.join(folders)
    return ours | {
        "COLUMNS": "200",
        "COMMAND_SERVER": str(server),
        "CURL_HOME": str(folder),
        "JETFLOCK_NATS_URL": stack.nats_url,
        "JETFLOCK_URL": f"http://127.0.0.1:{stack.port}",
        "PATH": path,
        "PYTHONPATH": str(REPOSITORY),
    }
