"""docs/models.md says of every decoder in the installed transformers what becomes of it."""

from __future__ import annotations

from importlib.metadata import version
from types import ModuleType

import pytest

from worker.engine.models.transformers_architectures import REASONS, TESTED_ARCHITECTURES


@pytest.fixture(scope="module")
def table() -> ModuleType:
    """Imported late: each process that collects tests would take a second for transformers."""
    import bench.model_table

    return bench.model_table


def test_the_list_is_that_of_the_code(table: ModuleType) -> None:
    text = table.PAGE.read_text()
    installed = version("transformers")
    if f"of transformers {installed}:" not in text:
        pytest.skip(f"the list is of another version than {installed}, CI's (.ci/constraints.txt)")
    assert text == table.with_table(text), "run: make house ARGS=--models"


def test_every_decoder_has_one_fate(table: ModuleType) -> None:
    found = table.fates()
    assert set().union(*found.values()) == table.decoders()
    assert sum(map(len, found.values())) == len(table.decoders())


def test_nothing_is_refused_twice_or_tested_in_vain(table: ModuleType) -> None:
    refused = [name for names in REASONS.values() for name in names]
    assert len(refused) == len(set(refused))
    assert not set(refused) & TESTED_ARCHITECTURES
    assert set(refused) <= table.decoders()
