"""What NATS may say in a bad moment, at the place where a test wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def failing_once(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception
) -> None:
    """The next call fails without effect; from then on all is as it was."""
    work: Callable[..., Any] = getattr(owner, name)

    async def fail(*_: object, **__: object) -> None:
        monkeypatch.setattr(owner, name, work)
        raise error

    monkeypatch.setattr(owner, name, fail)


def answer_lost_once(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception
) -> None:
    """The next call has its effect, and its caller does not learn of it."""
    work: Callable[..., Any] = getattr(owner, name)

    async def work_and_fail(*args: object, **options: object) -> None:
        monkeypatch.setattr(owner, name, work)
        await work(*args, **options)
        raise error

    monkeypatch.setattr(owner, name, work_and_fail)
