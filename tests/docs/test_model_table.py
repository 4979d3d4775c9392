"""docs/models.md says of every decoder in the installed transformers what becomes of it."""

from __future__ import annotations

from bench.model_table import PAGE, decoders, fates, with_table
from worker.engine.models.refused_architectures import REASONS
from worker.engine.models.tested_architectures import TESTED_ARCHITECTURES


def test_the_list_is_that_of_the_code() -> None:
    assert PAGE.read_text() == with_table(PAGE.read_text()), "run: make house ARGS=--models"


def test_every_decoder_has_one_fate() -> None:
    found = fates()
    assert set().union(*found.values()) == decoders()
    assert sum(map(len, found.values())) == len(decoders())


def test_nothing_is_refused_twice_or_tested_in_vain() -> None:
    refused = [name for names in REASONS.values() for name in names]
    assert len(refused) == len(set(refused))
    assert not set(refused) & TESTED_ARCHITECTURES
    assert set(refused) <= decoders()
