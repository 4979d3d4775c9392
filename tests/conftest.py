"""Fixtures that all tests share."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import tracemalloc  # noqa: F401 - pytest imports it while garbage is collected: too late
import types
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis  # its plugin, too, imports it, in the summary: too deep there
import psutil
import pytest
from hypothesis.internal.conjecture import providers

from shared.cli.garbage import importing_much
from shared.telemetry.without_rich import without_rich
from tests.fast_tests import NUM_FAST_EXAMPLES, FastTests
from tests.nats_server import NatsServer
from tests.processes import TestProcesses
from tests.reruns import FailureTeller, forbid_reruns

with without_rich():
    import structlog

MEMORY, MIN_ROOM = "/dev/shm", 6 << 30
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads before tests/processes.py forks
# As worker/engine_link/engine_launch.py has it, before torch is imported: threads that spin take
# the core that another process of tests needs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="no process, no broker, nothing with torch"
    )
    parser.getgroup("processes")._addoption(  # its public name takes no lower-case letter
        "-n", dest="num_processes", type=int, default=0, help="so many processes run the tests"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # Else programs that are forked import pytest, which this process runs.
    sys.modules["__main__"] = types.ModuleType("__main__")
    # How long one example takes, and how long it takes to make it, is up to the machine.
    hypothesis.settings.register_profile(
        "any machine",
        parent=hypothesis.settings(),
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("any machine")
    if config.getoption("--fast") or "not nightly" in config.option.markexpr:
        # Else, before the first test, it reads all our modules for constants to try: seconds in
        # which other cores are idle.
        providers._get_local_constants = lambda: providers._local_constants
    if config.getoption("--fast"):
        # Those who want several times as many, or a part, say so by the default.
        hypothesis.settings.register_profile(
            "fast", parent=hypothesis.settings(), max_examples=NUM_FAST_EXAMPLES
        )
        hypothesis.settings.load_profile("fast")
        config.pluginmanager.register(FastTests(), "fast-tests")
    if _has_room(MEMORY):  # where no server of a test waits for a disk
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        config.pluginmanager.register(FailureTeller(reporter), "failure-teller")
    num_processes = config.getoption("num_processes")
    if num_processes and reporter is not None and not config.getoption("usepdb"):
        config.pluginmanager.register(TestProcesses(reporter, num_processes), "test-processes")


def _has_room(folder: str) -> bool:
    """For the files of tests, of which some are programs."""
    if not os.path.isdir(folder) or psutil.virtual_memory().available < MIN_ROOM:
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > MIN_ROOM and not found.f_flag & os.ST_NOEXEC


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay until the end: no test has to look through them for garbage."""
    with importing_much(), pytest.MonkeyPatch.context() as meanwhile:
        meanwhile.setenv("TOKENIZERS_PARALLELISM", "false")  # as above
        found = yield
    gc.freeze()
    # What is not freed at the end is told by nanobind, whose objects Triton has. Not before that:
    # pytest looks for garbage, too.
    atexit.register(gc.unfreeze)
    return found


def pytest_itemcollected(item: pytest.Item) -> None:
    if "nats_server" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.integration)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    forbid_reruns(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A command that ran in this process has set its logs up: no later test has them."""
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        return (yield)
    finally:
        structlog.reset_defaults()
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A real nats-server on a free port with a store of its own."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        yield server
    finally:
        server.kill()
