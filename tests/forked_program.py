"""Programs that a server forks which has imported them: a start costs a tenth of the time.

`python -m MODULE` in all but its first second: a process of its own, with its command line, its
environment, its folder and its output. What it starts by `subprocess` is forked as well where it is
another such program, and so stays its child.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import fcntl
import gc
import io
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from deploy.processes import die_with_parent

REPOSITORY = Path(__file__).parents[1]
# What programs import when they are started, and what is late there: never their `__main__`.
_PRELOADED = (
    "uvloop",
    "tests.forked_program",
    "frontend.frontend",
    "detok.detokenizer",
    "worker.serving",
    "worker.start_gate",
    "worker.engine.scripted.scripted_engine",
    "worker.engine.loading.engine_loader",
    "deploy.local.stack",
    "jetflock.cli",
)
_FLAGS = {"-P", "-B", "-u"}  # of the interpreter, which change nothing here
Result = TypeVar("Result")
_HIGH_FD = 500  # nobody has so many open

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(list(_PRELOADED))
# A status is there once: of two threads that look for it at a time, one reads nothing.
_looking = threading.Lock()


class ForkedProgram:
    """Has the names of `subprocess.Popen`. Its parent is the server, not this process."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        out: Path,
        err: Path,
    ) -> None:
        """`out` and `err` are appended to."""
        words = ModuleWords.of(argv, env)
        assert words is not None, f"{argv} is no program of this source"
        self.args = list(argv)
        for file in (out, err):
            file.touch()  # it may be read before the child writes
        self._process = _server.Process(
            target=_run, args=(words, cwd, dict(env), out, err), daemon=True
        )
        with _looking:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _looking:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        multiprocessing.connection.wait([self._process.sentinel], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def share_server() -> None:
    """Start it now, for all processes that are forked from this one."""
    multiprocessing.forkserver.ensure_running()
    os.register_at_fork(after_in_child=_use_server_of_parent)


def _use_server_of_parent() -> None:
    # It asks whether the server is a child of its own.
    server: Any = multiprocessing.forkserver._forkserver
    server.ensure_running = multiprocessing.resource_tracker.ensure_running


def run_program(
    *words: str,
    cwd: Path = REPOSITORY,
    env: Mapping[str, str] = os.environ,
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """`python -m WORDS` to its end, as `subprocess.run` does it."""
    argv = [sys.executable, "-m", *words]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        program = ForkedProgram(
            argv, cwd=cwd, env={**env, "PYTHONPATH": str(REPOSITORY)}, out=out, err=err
        )
        try:
            status = program.wait(timeout_s)
        finally:
            program.kill()
        return subprocess.CompletedProcess(argv, status, out.read_text(), err.read_text())


def call_forked(function: Callable[..., Result], *args: object, timeout_s: float) -> Result:
    """What a function of a module returns in a process whose own programs are forked, too."""
    receiver, sender = _server.Pipe(duplex=False)
    process = _server.Process(
        target=_call, args=(sender, dict(os.environ), function, args), daemon=True
    )
    with _looking:
        process.start()
    sender.close()
    try:
        assert receiver.poll(timeout_s), f"{function.__name__} takes more than {timeout_s:g} s"
        result, error = receiver.recv()
    finally:
        with _looking:
            process.kill()
            process.join()
    assert error is None, error
    found: Result = result
    return found


class ModuleWords(NamedTuple):
    """`python -m MODULE ARGS`."""

    argv: list[str]
    module: str
    args: list[str]

    @classmethod
    def of(cls, argv: Sequence[str], env: Mapping[str, str]) -> ModuleWords | None:
        """None: it is another program, another source, or needs another interpreter."""
        interpreter, *rest = argv
        while rest and rest[0] in _FLAGS:
            rest = rest[1:]
        if interpreter != sys.executable or len(rest) < 2 or rest[0] != "-m":
            return None
        source = env.get("PYTHONPATH", "").split(os.pathsep)[0]
        if source != str(REPOSITORY) or "LD_PRELOAD" in env:
            return None
        return cls(list(argv), rest[1], rest[2:])


def _run(words: ModuleWords, cwd: Path, env: Mapping[str, str], out: Path, err: Path) -> NoReturn:
    """In the server's child."""
    _end_with_starter()
    os.setsid()
    for file, fd in ((Path(os.devnull), 0), (out, 1), (err, 2)):
        opened = os.open(file, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
    os.chdir(cwd)
    _become(words, env)


def _call(
    sender: multiprocessing.connection.Connection,
    env: Mapping[str, str],
    function: Callable[..., object],
    args: Sequence[object],
) -> NoReturn:
    """In the server's child."""
    _end_with_starter()
    os.setsid()
    _forget_server({**env, "PYTHONPATH": str(REPOSITORY)})
    try:
        sender.send((function(*args), None))
    except BaseException:
        sender.send((None, traceback.format_exc()))
    _leave(0)


def _become(words: ModuleWords, env: Mapping[str, str]) -> NoReturn:
    """What an interpreter that was just started would find; the end is that of the process."""
    _forget_server(env)
    is_unbuffered = bool(env.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as the others
    sys.stdout, sys.stderr = (_text_file(fd, is_unbuffered or fd == 2) for fd in (1, 2))
    _show_command_line(words.argv)
    sys.argv[:] = [words.module, *words.args]
    _leave(contextvars.Context().run(_status_of, words.module))


def _end_with_starter() -> None:
    """The kernel kills this process when the one that asked for it ends, by whatever."""
    starter = multiprocessing.parent_process()
    assert starter is not None
    pipe = starter.sentinel
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if not starter.is_alive():  # it ended before the kernel was asked
        os._exit(1)


def _forget_server(env: Mapping[str, str]) -> None:
    gc.freeze()  # what was made before the fork is never freed: it may own files that are closed
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    os.environ.clear()
    os.environ.update(env)
    subprocess._fork_exec = _fork_or_exec  # type: ignore[attr-defined]


def _text_file(fd: int, is_unbuffered: bool) -> io.TextIOWrapper:
    binary = open(fd, "wb", closefd=False)  # noqa: SIM115 - it is open until the process ends
    is_line = is_unbuffered or os.isatty(fd)
    return io.TextIOWrapper(binary, write_through=is_unbuffered, line_buffering=is_line)


def _status_of(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exc:
        if exc.code is None or isinstance(exc.code, int):
            return exc.code or 0
        print(exc.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _leave(status: int) -> NoReturn:
    """What is left to do at the end of an interpreter."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


def _show_command_line(argv: Sequence[str]) -> None:
    """In the place of the server's, as `ps` reads it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = b"\0".join(word.encode() for word in argv)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


_fork_exec: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]


def _fork_or_exec(
    args: Sequence[str | bytes],
    executables: Sequence[bytes],
    close_fds: bool,
    kept_fds: Collection[int],
    cwd: object,
    env: Sequence[bytes] | None,
    *rest: Any,
) -> int:
    """In place of what `subprocess` starts a program with: forks where it can, else starts it."""
    argv = [os.fsdecode(word) for word in args]
    parent = None
    if argv[3:4] == [die_with_parent.__file__]:
        parent, argv = int(argv[4]), argv[5:]
    pairs = (each.split(b"=", 1) for each in env or ())
    environ = {os.fsdecode(name): os.fsdecode(value) for name, value in pairs}
    words = ModuleWords.of(argv, dict(os.environ) if env is None else environ)
    if words is None or cwd is not None:
        return _fork_exec(args, executables, close_fds, kept_fds, cwd, env, *rest)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        error_pipe, _, starts_session = rest[7:10]
        _take_files(rest[:6], {*kept_fds} - {error_pipe})
        if starts_session:
            os.setsid()
        if parent is not None:
            end_with(parent)
        _become(words, dict(os.environ) if env is None else environ)
    finally:
        os._exit(255)


def _take_files(pipes: Sequence[int], kept_fds: Collection[int]) -> None:
    """Those of the child in their places, and no others but the kept ones."""
    read_fd, _, _, write_fd, _, error_fd = pipes
    ours = [
        fd if fd < 0 else fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH_FD)
        for fd in (read_fd, write_fd, error_fd)
    ]
    for place, fd in enumerate(ours):
        if fd >= 0:
            os.dup2(fd, place)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept_fds:
            with contextlib.suppress(OSError):  # the folder's own
                os.close(int(name))
    for fd in kept_fds:
        os.set_inheritable(fd, True)


def end_with(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """As deploy/processes/die_with_parent.py does."""
    ctypes.CDLL(None, use_errno=True).prctl(die_with_parent._PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(1)
