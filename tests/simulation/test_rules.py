"""The protocol's rules in tens of thousands of random stories, and without some of them."""

from __future__ import annotations

import os

import pytest

from tests.simulation.mutations import RULE_MUTATIONS
from tests.simulation.rules import play_stories

pytestmark = pytest.mark.slow

_BATCH = 2_000
# Where to begin to look: from story 0 on it takes longer, and finds no less.
_FIRST_STORIES = {
    "a floor at any restatement": 900,
    "a restatement hides what was written after it": 650,
}
# A missing rule shows within the first 1,000. `make test-deep` plays 100,000.
NUM_STORIES = 100_000 if os.environ.get("JETFLOCK_TEST_DEEP") else 2_000


@pytest.mark.parametrize("first", range(0, NUM_STORIES, _BATCH))
def test_no_story_breaks_an_invariant(first: int) -> None:
    for seed, violations in play_stories(range(first, first + _BATCH)):
        assert not violations, f"story {seed}: {violations}"


@pytest.mark.parametrize("name", RULE_MUTATIONS)
def test_a_missing_rule_is_noticed(name: str) -> None:
    first = _FIRST_STORIES.get(name, 0)
    with RULE_MUTATIONS[name]():
        is_noticed = any(found for _, found in play_stories(range(first, first + _BATCH)))
    assert is_noticed, f"{_BATCH} stories did not notice: {name}"
