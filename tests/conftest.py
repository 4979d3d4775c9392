"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import tracemalloc  # noqa: F401 - pytest imports it while garbage is collected: too late
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis  # its plugin, too, imports it, in the summary: too deep there
import pytest
from xdist.remote import Producer

from shared.cli.garbage import importing_much
from tests.fast_tests import NUM_FAST_EXAMPLES, FastTests
from tests.nats_server import NatsServer
from tests.order import ByModule, spread
from tests.reruns import FailureTeller, forbid_reruns


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="no process, no broker, nothing with torch"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # As worker/engine_link/engine_launch.py has it, before torch is imported: threads that spin
    # take the core that another process of tests needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # How long one example takes, and how long it takes to make it, is up to the machine.
    hypothesis.settings.register_profile(
        "any machine",
        parent=hypothesis.settings(),
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("any machine")
    if config.getoption("--fast"):
        # Those who want several times as many, or a part, say so by the default.
        hypothesis.settings.register_profile(
            "fast", parent=hypothesis.settings(), max_examples=NUM_FAST_EXAMPLES
        )
        hypothesis.settings.load_profile("fast")
        config.pluginmanager.register(FastTests(), "fast-tests")
    # In the process that reports: of several that run tests none has a terminal.
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureTeller(reporter), "failure-teller")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay until the end: no test has to look through them for garbage."""
    with importing_much():
        found = yield
    gc.freeze()
    return found


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByModule | None:
    return ByModule(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if "nats_server" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.integration)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    forbid_reruns(items)
    if hasattr(config, "workerinput"):
        items[:] = spread(items)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A real nats-server on a free port with a store of its own."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        yield server
    finally:
        server.kill()
