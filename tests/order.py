"""In which order several processes run the tests: modules that start roles among those that do not.

What starts roles waits a lot, and needs the cores when it does not: six such modules at once are in
each other's way, and the last one alone leaves a core idle.
"""

from __future__ import annotations

from itertools import groupby

import pytest

_WEIGHTS = {"slow": 4, "e2e": 1}  # of a test; the modules that weigh most begin
_HEAVY_UNTIL = 0.85  # of the others: the end is for short ones


def spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Module by module: those that weigh nothing stay in order, the others come between them."""
    modules = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    light = [module for module in modules if not _weight(module)]
    heavy = sorted(filter(_weight, modules), key=_weight, reverse=True)
    places = [(place * _HEAVY_UNTIL * len(light) / len(heavy), 0) for place in range(len(heavy))]
    places += [(place, 1) for place in range(len(light))]
    placed = sorted(zip(places, heavy + light, strict=True), key=lambda pair: pair[0])
    return [item for _, module in placed for item in module]


def _weight(module: list[pytest.Item]) -> int:
    return sum(
        weight
        for item in module
        for mark, weight in _WEIGHTS.items()
        if item.get_closest_marker(mark)
    )
