"""How far the random tests go: a round that CI has time for, or `make test-deep`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

IS_DEEP = os.environ.get("JETFLOCK_TEST_DEEP", "") == "1"
DEEP_EXAMPLES = 4000
DEEP_STEPS = 50  # of each example: 200,000 in all, fewer where hypothesis ends one early


def stateful_settings(num_examples: int, num_steps: int) -> settings:
    """Of a state machine; what is given is for CI."""
    return settings(
        max_examples=DEEP_EXAMPLES if IS_DEEP else num_examples,
        stateful_step_count=DEEP_STEPS if IS_DEEP else num_steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        database=None if IS_DEEP else settings().database,
    )
