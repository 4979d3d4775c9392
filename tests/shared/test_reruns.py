"""A failure of what is decided here is told, also when it does not come again."""

from __future__ import annotations

import pytest

from tests.reruns import OF_PYTHON


def test_a_test_of_the_protocol_runs_again_for_python_alone(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("flaky")
    assert marker is not None
    assert marker.kwargs["only_rerun"] == [OF_PYTHON]
