"""A factory of stacks that ends them all after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.local_stack import LocalStack


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., LocalStack]]:
    stacks: list[LocalStack] = []

    def make(*flags: str, **options: object) -> LocalStack:
        folder = tmp_path / f"stack-{len(stacks)}"
        stacks.append(LocalStack(folder, *flags, **options))  # type: ignore[arg-type]
        return stacks[-1]

    yield make
    for stack in stacks:
        stack.kill()
