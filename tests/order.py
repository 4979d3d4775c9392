"""In which order several processes run the tests: modules that start roles among those that do not.

What starts roles waits a lot, and needs the cores when it does not: six such modules at once are in
each other's way, and the last one alone leaves a core idle.
"""

from __future__ import annotations

from itertools import groupby

import pytest
from xdist.scheduler import LoadFileScheduling

# Its modules share a service, which takes half a minute to start where there is much to do.
_PAGE = "tests/frontend/page"
_WEIGHTS = {"slow": 4, "e2e": 1}  # of a test; the modules that weigh most begin
_HEAVY_UNTIL = 0.85  # of the others: the end is for short ones


class ByModule(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a process a module at a time, and all modules of the page at once."""

    def _split_scope(self, nodeid: str) -> str:
        path: str = super()._split_scope(nodeid)
        return _PAGE if path.startswith(_PAGE) else path


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
