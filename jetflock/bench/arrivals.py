"""When requests of an open loop are due."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator


def arrival_times_s(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Seconds from the start, endlessly, `rate` a second.

    Pauses are gamma-distributed with shape `burstiness` and mean 1 / rate: 1 is a Poisson process,
    less comes in bursts, more is more even.
    """
    pauses = (rng.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in itertools.count())
    return itertools.accumulate(pauses)
