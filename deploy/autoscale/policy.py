"""How many workers a pool needs now: a function of what is seen, without memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from deploy.autoscale.load_estimator import Load
from deploy.autoscale.pool_snapshot import PoolSnapshot

_SOME = 0.1  # of a worker: one, however little there is to do


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """What is aimed at, and how quickly it may be followed."""

    min_workers: int
    max_workers: int
    target_s: float = 10.0  # time to work off what waits,
    target_starts: float = 0.5  # and so many times `start_s` more
    headroom: float = 1.0  # deviations of the load that are kept free
    tolerance: float = 0.1  # share by which need and number may differ
    idle_s: float = 300.0  # without a request before the last worker goes
    down_window_s: float = 60.0  # the greatest need in it counts for going down,
    down_starts: float = 1.0  # and in so many times `start_s` more
    up_factor: float = 2.0  # at most so many times more within `up_period_s`, or
    up_step: int = 4  # so many more
    up_period_s: float = 15.0
    down_factor: float = 0.5  # at least this share is left after `down_period_s`
    down_period_s: float = 60.0


class Need(NamedTuple):
    """Workers that are needed, not rounded, and why."""

    num_workers: float
    reason: str


def needed_workers(policy: ScalePolicy, load: Load, seen: PoolSnapshot) -> Need:
    """What the pool needs, whatever its bounds and its past.

    A worker that is ordered now helps after `start_s`. So the load is the one expected by then, and
    what waits may take longer the longer that is: aiming at less would order workers for a backlog
    that is gone before they come.
    """
    by_requests = Need(seen.num_requests / load.worker_slots, "requests")
    needs = [Need(_SOME if seen.num_requests else 0.0, "requests")]
    if load.is_proven:
        needs += [
            _by_load(policy, load, seen),
            Need(seen.num_running / load.worker_slots, "running requests"),
        ]
    elif load.is_known:  # good enough to do with fewer, not to ask for more
        kept = min(seen.num_workers, _by_load(policy, load, seen).num_workers)
        needs += [by_requests, Need(kept, "load")]
    else:
        busy = min(seen.num_workers, seen.num_requests) * (1 - policy.tolerance)  # whole ones
        needs += [by_requests, Need(busy, "load unknown")]
    if seen.oldest_wait_s > policy.target_s + seen.start_s and not seen.num_starting:
        # What tokens do not tell: contexts that fill the KV cache, workers that hang.
        more = max(1.0, 2 * policy.tolerance * seen.num_workers)
        needs.append(Need(seen.num_workers + more, "oldest request"))
    return max(needs, key=lambda need: need.num_workers)


def _by_load(policy: ScalePolicy, load: Load, seen: PoolSnapshot) -> Need:
    """The expected load, and beside it room for its variance, or for what waits already.

    Square-root staffing: the load, counted in slots, varies by its root, so that large pools need
    a smaller share of room. What waits takes a worker a request at most.
    """
    offered = load.expected_per_s * load.request_worker_s
    headroom = policy.headroom * math.sqrt(offered / load.worker_slots)
    horizon_s = policy.target_s + policy.target_starts * seen.start_s
    catch_up = seen.num_waiting * min(1.0, load.request_worker_s / horizon_s)
    if catch_up > headroom:
        return Need(offered + catch_up, "backlog")
    return Need(offered + headroom, "load")
