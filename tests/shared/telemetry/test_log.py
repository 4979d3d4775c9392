"""Lines of logs: one JSON object each, whatever is in them; what cannot be written is lost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.deploy.local_stack import REPOSITORY

PROGRAM = """
import logging
from shared.telemetry.log import get_logger, setup_logging
setup_logging("tester", "info", "json")
log = get_logger("a")
log.debug("not_told")
log.info("told", text="Grüße", path=__import__("pathlib").Path("/x"), none=None)
log.warning("half", text="\\ud83d", large=1 << 70)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
logging.getLogger("library").warning("its %s", "own")
logging.getLogger("nats").info("not told either")
"""


@pytest.mark.e2e
def test_every_line_is_an_object() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    told, half, failed, library = map(json.loads, done.stderr.splitlines())
    assert told.pop("timestamp").endswith("Z")
    assert told == {
        "event": "told",
        "role": "tester",
        "level": "info",
        "text": "Grüße",
        "path": "PosixPath('/x')",
        "none": None,
    }
    assert (half["text"], half["large"], half["level"]) == ("\ud83d", 1 << 70, "warning")
    assert "ZeroDivisionError" in failed["exception"]
    assert failed["level"] == "error"
    assert (library["event"], library["level"], library["role"]) == ("its own", "warning", "tester")


@pytest.mark.e2e
def test_a_stderr_that_cannot_be_written_to_harms_nobody() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM + "print('alive')"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )
    assert done.stdout == "alive\n"


@pytest.mark.e2e
@pytest.mark.parametrize("role", ["detok.__main__", "frontend.frontend", "worker.serving"])
def test_a_role_starts_without_rich_and_may_import_it_later(role: str) -> None:
    program = f"""
import sys
import {role}
assert "rich" not in sys.modules
import rich.console
"""
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)


@pytest.mark.e2e
def test_a_command_tells_warnings_in_plain_text_and_never_on_stdout() -> None:
    program = PROGRAM.replace("setup_logging", "setup_command_logging")
    done = subprocess.run(
        [sys.executable, "-c", program.replace(', "info", "json"', "")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback (most recent call last):" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "\x1b" not in done.stderr  # where it goes to a file
    assert "Grüße" not in done.stderr + done.stdout  # but for information
    assert "UserWarning" not in done.stderr
    assert not done.stdout
