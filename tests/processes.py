"""`-n N`: N processes run the tests, forked from the one that has collected them and reports.

Each is given a module at a time; when a test ends its process, another runs what was left.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from _pytest._io import TerminalWriter

from shared.cli.garbage import importing_much
from tests.forked_program import end_with, share_server
from tests.nats_server import PROCESS

# Its modules share a service, which takes half a minute to start where there is much to do.
_PAGE = "tests/frontend/page"
# Of a test, in its module: those that weigh most begin.
_ROLES_WEIGHTS = {"slow": 4.0, "e2e": 1.0}
_OTHER_WEIGHTS = {"torch": 0.2, "integration": 0.2}
_ROLES_UNTIL = 0.85  # of the others: the end is for short ones
# What most tests of models import late, 3 s of it: once for all processes.
_IMPORTED_ONCE = ("transformers.generation.utils", "transformers.models.llama.modeling_llama")
_END_TIMEOUT_S = 60.0
_END = object()
_fork = multiprocessing.get_context("fork")


@dataclass
class TestProcess:
    """One as its parent knows it: the leader of a group of processes."""

    process: BaseProcess
    number: int
    connection: Connection
    todo: deque[int] = field(default_factory=deque)  # tests given to it; the first one runs
    last: int = -1  # that ended

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def interrupt(self) -> None:
        """The fixtures of what runs are taken down."""
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGINT)

    def end(self) -> int:
        """Kills who is left of the group. Its status."""
        self.process.join(_END_TIMEOUT_S)
        self.process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.join()
        self.connection.close()
        return self.process.exitcode or 0


class TestProcesses:
    """A plugin of the process that collects and reports."""

    def __init__(self, reporter: pytest.TerminalReporter, num_processes: int) -> None:
        self._num_processes = num_processes
        self._modules: deque[list[int]] = deque()  # places of their tests among all
        self._running: dict[Connection, TestProcess] = {}
        self._num_threads = 1
        reporter.showfspath = False  # several files at a time

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A fork has none of the threads of its parent, and waits for them for ever."""
        report = yield
        if self._num_threads == 1 < (num_threads := len(os.listdir("/proc/self/task"))):
            self._num_threads = num_threads
            report.outcome = "failed"
            report.longrepr = f"{collector.nodeid} starts threads: import or call late what does so"
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None  # as ever: it has nothing to run
        session.items[:] = in_order(session.items)
        for _, module in groupby(enumerate(session.items), key=lambda pair: _scope(pair[1])):
            self._modules.append([place for place, _ in module])
        _prepare(session)
        try:
            for number in range(min(self._num_processes, len(self._modules))):
                self._start(session, number)
            while self._running:
                for connection in wait(list(self._running)):
                    self._hear(session, self._running[connection])  # type: ignore[index]
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for process in self._running.values():
                process.interrupt()
            for process in self._running.values():
                process.end()
        return True

    def _start(self, session: pytest.Session, number: int) -> None:
        ours, theirs = _fork.Pipe()
        foreign = [*self._running, ours]
        process = _fork.Process(
            target=_run, args=(session, theirs, foreign, number, self._num_processes)
        )
        process.start()
        theirs.close()
        self._running[ours] = TestProcess(process, number, ours)
        self._give(self._running[ours])

    def _give(self, process: TestProcess) -> None:
        """The next module; none: it ends."""
        process.todo.extend(self._modules.popleft() if self._modules else ())
        with contextlib.suppress(BrokenPipeError):  # it has just ended: that is heard
            process.connection.send([*process.todo])

    def _hear(self, session: pytest.Session, process: TestProcess) -> None:
        hook = session.config.hook
        report: Any = _END
        with contextlib.suppress(EOFError, OSError):
            report = process.connection.recv()
        if report is _END:
            self._on_end(session, process)
            return
        if report is not None:
            told = hook.pytest_report_from_serializable(config=session.config, data=report)
            hook.pytest_runtest_logreport(report=told)
            return
        process.last = process.todo.popleft()
        item = session.items[process.last]
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if not process.todo:
            self._give(process)

    def _on_end(self, session: pytest.Session, process: TestProcess) -> None:
        """A test that ends its process has failed."""
        del self._running[process.connection]
        status = process.end()
        if not process.todo and not status:
            return
        item = session.items[process.todo.popleft() if process.todo else process.last]
        why = f"the process of this test ended with status {status}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
        if process.todo:
            self._modules.appendleft([*process.todo])
        if self._modules:
            self._start(session, process.number)


def _prepare(session: pytest.Session) -> None:
    """What all of them would do again."""
    marks = {mark.name for item in session.items for mark in item.iter_markers()}
    if "e2e" in marks:
        share_server()
    if "torch" in marks:
        with importing_much():
            for name in _IMPORTED_ONCE:
                importlib.import_module(name)
        gc.freeze()
    _folders(session.config).getbasetemp()  # made anew by whoever asks first


def _run(
    session: pytest.Session, connection: Connection, foreign: list[Connection], number: int, of: int
) -> None:
    """What a child does: the tests that it is given."""
    os.setpgid(0, 0)  # Ctrl-C is for the parent, which tells this one
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    end_with(parent.pid, signal.SIGINT)
    for other in foreign:  # so that the end of one process is seen by all
        other.close()
    os.environ[PROCESS] = f"{number}/{of}"
    _forget_parent(session.config, number)
    session.config.pluginmanager.register(_Teller(session.config, connection), "terminalreporter")
    try:
        while places := connection.recv():
            items = [session.items[place] for place in places]
            # What is made for a session stays for the next module.
            for item, following in zip(items, [*items[1:], session], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                connection.send(None)
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        pass  # the parent ends, and says so
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        session._setupstate.teardown_exact(None)


class _Teller:
    """A plugin of a child: the parent reports what happens to its tests."""

    stats: dict[str, list[pytest.TestReport]] = {}  # noqa: RUF012 - pytest-rerunfailures reads it

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    @property
    def _tw(self) -> TerminalWriter:
        """pytest-timeout writes there where each thread is: it is shown with the failure."""
        return TerminalWriter(sys.stderr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._connection.send(
            hook.pytest_report_to_serializable(config=self._config, report=report)
        )


def _forget_parent(config: pytest.Config, number: int) -> None:
    """What tests print, and their folders, are each process's own; the terminal is the parent's."""
    plugins = config.pluginmanager
    for name in ("terminalreporter", "failure-teller", "test-processes"):
        plugins.unregister(name=name)
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folders = _folders(config)
    folders._basetemp = folders.getbasetemp() / f"process-{number}"
    folders._basetemp.mkdir(mode=0o700, exist_ok=True)


def _folders(config: pytest.Config) -> Any:
    """The factory of `tmp_path`."""
    return config._tmp_path_factory  # type: ignore[attr-defined]


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Module by module, the longest first; those that start roles come between the others.

    What starts roles waits a lot, and needs the cores when it does not: many such modules at once
    are in each other's way, and a long one at the end leaves a core idle.
    """
    modules = [list(group) for _, group in groupby(items, key=_scope)]
    modules.sort(key=lambda module: _weight(module, _OTHER_WEIGHTS), reverse=True)
    others = [module for module in modules if not _weight(module, _ROLES_WEIGHTS)]
    roles = [module for module in modules if _weight(module, _ROLES_WEIGHTS)]
    roles.sort(key=lambda module: _weight(module, _ROLES_WEIGHTS), reverse=True)
    places = [(place * _ROLES_UNTIL * len(others) / len(roles), 0) for place in range(len(roles))]
    places += [(place, 1) for place in range(len(others))]
    placed = sorted(zip(places, roles + others, strict=True), key=lambda pair: pair[0])
    return [item for _, module in placed for item in module]


def _scope(item: pytest.Item) -> str:
    path = item.nodeid.partition("::")[0]
    return _PAGE if path.startswith(_PAGE) else path


def _weight(module: list[pytest.Item], weights: Mapping[str, float]) -> float:
    return sum(
        weight
        for item in module
        for mark, weight in weights.items()
        if item.get_closest_marker(mark)
    )
