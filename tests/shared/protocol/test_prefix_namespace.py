from __future__ import annotations

import itertools

from shared.protocol.prefix_namespace import prefix_namespace


def test_every_part_tells_apart() -> None:
    parts = ["", "a", "b", "ab"]
    namespaces = {prefix_namespace(*each) for each in itertools.product(parts, repeat=3)}
    assert len(namespaces) == 64
    assert prefix_namespace("a", "b", "") == prefix_namespace("a", "b", "")
