"""A failure of what is decided here is told, also when it does not come again."""

from __future__ import annotations

import pytest


def test_a_test_of_the_protocol_is_run_once(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("flaky")
    assert marker is not None
    assert marker.kwargs == {"reruns": 0}
