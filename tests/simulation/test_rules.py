"""The protocol's rules in tens of thousands of random stories, and without some of them."""

from __future__ import annotations

import os

import pytest

from tests.simulation.mutations import RULE_MUTATIONS
from tests.simulation.rules import play_stories

pytestmark = pytest.mark.slow

_BATCH = 5_000
_MAX_TO_FIND = 10_000
# A missing rule shows within the first 5,000. `make test-deep` plays 100,000.
NUM_STORIES = 100_000 if os.environ.get("JETFLOCK_TEST_DEEP") else 5_000


@pytest.mark.parametrize("first", range(0, NUM_STORIES, _BATCH))
def test_no_story_breaks_an_invariant(first: int) -> None:
    for seed, violations in play_stories(range(first, first + _BATCH)):
        assert not violations, f"story {seed}: {violations}"


@pytest.mark.parametrize("name", RULE_MUTATIONS)
def test_a_missing_rule_is_noticed(name: str) -> None:
    with RULE_MUTATIONS[name]():
        is_noticed = any(violations for _, violations in play_stories(range(_MAX_TO_FIND)))
    assert is_noticed, f"{_MAX_TO_FIND} stories did not notice: {name}"
