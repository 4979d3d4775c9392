"""What tests of CPU time need."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from shared.cli.garbage import settle_garbage


@pytest.fixture(scope="module")
def collected_as_in_a_role() -> Iterator[None]:
    """What all the other tests have left is looked at once, and not while CPU time is measured."""
    thresholds = gc.get_threshold()
    settle_garbage()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
