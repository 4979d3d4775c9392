"""Traffic for the simulated autoscaler: when requests arrive, and how many tokens each has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEP_S = 1.0  # the rate is constant for so long


@dataclass(frozen=True)
class Arrivals:
    """Of one run, in order."""

    times: list[float]  # seconds
    tokens: list[float]
    duration_s: float


Shape = Callable[[Floats, np.random.Generator], Floats]  # times -> share of the peak load, 0 to 1


def steps(times: Floats, _rng: np.random.Generator) -> Floats:
    """A tenth, nine tenths, a tenth."""
    third = times[-1] / 3
    return np.where((times >= third) & (times < 2 * third), 0.9, 0.1)


def diurnal(times: Floats, _rng: np.random.Generator) -> Floats:
    """Two days, each in half of the time, with a dead hour each night."""
    wave = 0.5 - 0.55 * np.cos(4 * np.pi * times / times[-1])
    return np.clip(wave, 0.0, 1.0)


def bursts(times: Floats, rng: np.random.Generator) -> Floats:
    """Nothing for ten minutes on average, then as much as there is for two."""
    share = np.zeros_like(times)
    at = 0.0
    while at < times[-1]:
        at += rng.exponential(600.0)
        end = at + rng.exponential(120.0)
        share[(times >= at) & (times < end)] = 1.0
        at = end
    return share


SHAPES: dict[str, Shape] = {"steps": steps, "diurnal": diurnal, "bursts": bursts}


def make_arrivals(
    shape: Shape, peak_per_s: float, mean_tokens: float, duration_s: float, seed: int
) -> Arrivals:
    """A Poisson process with the shape's rate; sizes are log-normal, with a long tail."""
    rng = np.random.default_rng(seed)
    starts = np.arange(0.0, duration_s, _STEP_S)
    counts = rng.poisson(shape(starts, rng) * peak_per_s * _STEP_S)
    times = np.sort(np.repeat(starts, counts) + rng.uniform(0, _STEP_S, counts.sum()))
    sigma = 0.8
    tokens = rng.lognormal(np.log(mean_tokens) - sigma**2 / 2, sigma, len(times))
    return Arrivals(times.tolist(), tokens.tolist(), duration_s)
