"""Commands find the nats-server of the `jetflock serve` that runs here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetflock.local_service import is_listening, local_nats_urls, nats_url_of
from tests.deploy.local_stack import LocalStack


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalStack]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    data = tmp_path / "state" / "jetflock" / "port-8000"
    stack = LocalStack(tmp_path / "stack", "--data-dir", str(data))
    try:
        yield stack.start().wait_ready()
    finally:
        stack.kill()


@pytest.mark.integration
@pytest.mark.e2e
def test_it_is_found_while_it_runs(stack: LocalStack, tmp_path: Path) -> None:
    assert local_nats_urls() == [stack.nats_url]
    assert is_listening(f"{stack.nats_url},nats://127.0.0.1:1")
    stack.interrupt()
    assert stack.wait_exit() == 0
    assert local_nats_urls() == []
    assert not is_listening(stack.nats_url)
    assert nats_url_of(tmp_path / "nowhere") is None
