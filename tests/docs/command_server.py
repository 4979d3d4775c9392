"""Runs `jetflock ...` and Python files in forks of a process that has imported everything.

The pages have dozens of commands, and each would import the same for half a second. What runs is
the command itself, in a process of its own, with the argv, folder, environment, pipes and status of
who asked: `command_client.py`, which goes by the name of `jetflock` in the shell of a test.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

_MAX_MESSAGE_BYTES = 1 << 20
# Of what the commands and the programs of the pages import; imported once, here.
_IMPORTS = (
    "anthropic",
    "deploy.scaling.scale_config",
    "deploy.local.__main__",
    "detok.detokenizer",
    "frontend.frontend",
    "jetflock",
    "jetflock.commands.admin",
    "jetflock.commands.batch",
    "jetflock.bench.serve",
    "jetflock.cli",
    "jetflock.commands.dead",
    "jetflock.commands.events",
    "openai",
    "uvloop",
    "worker.worker",
)


def main() -> None:
    """`python -m tests.docs.command_server SOCKET`: until it is killed."""
    for module in _IMPORTS:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(16)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _attend(connection)
            connection.close()


def _attend(connection: socket.socket) -> None:
    """One command: its status goes back; a client that goes away takes the command with it."""
    message, fds, _, _ = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(message), fds)
    for fd in fds:
        os.close(fd)
    pid_fd = os.pidfd_open(pid)
    ready, _, _ = select.select([pid_fd, connection.fileno()], [], [])
    if pid_fd not in ready:
        os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
    os._exit(0)


def _become(command: dict[str, Any], fds: list[int]) -> None:
    """The command: never returns."""
    status = 0
    try:
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.chdir(str(command["folder"]))
        os.environ.clear()
        os.environ.update(command["environ"])
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        warnings.filterwarnings("ignore", module="runpy")  # what it runs was imported before
        name, *words = command["argv"]
        if name == "jetflock":
            from jetflock.cli import main as run

            sys.argv = ["jetflock", *words]
            run()
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as exc:
        if isinstance(exc.code, str):
            sys.stderr.write(exc.code + "\n")
        status = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
