"""A service as a user starts it; JETFLOCK is the command (`make test-clients` sets it)."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

READY_TIMEOUT_S = 180.0

# LiteLLM asks the network for prices when it is imported.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the API, with `/v1`."""
    folder = tmp_path_factory.mktemp("jetflock")
    log = folder / "log"
    command = [*shlex.split(os.environ["JETFLOCK"]), "serve", "--port", "0", "--data-dir"]
    with log.open("wb") as out:
        serve = subprocess.Popen([*command, folder / "data"], stdout=out, stderr=out)
    try:
        yield f"{address(serve, log)}/v1"
    finally:
        serve.send_signal(signal.SIGINT)
        serve.wait(60)


def address(serve: subprocess.Popen[bytes], log: Path) -> str:
    """Once a worker has the model."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        assert serve.poll() is None, log.read_text()
        for word in log.read_text().split():
            if word.startswith("http://127.0.0.1:") and answers(
                root := "/".join(word.split("/")[:3])
            ):
                return root
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def answers(root: str) -> bool:
    body = json.dumps({"text": "Hello", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{root}/generate", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False
