"""The figures of the last minutes: what is kept of them, for how long, and for whom."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from frontend.cluster.cluster_history import KEPT_S, MIN_GAP_S, ClusterHistory
from frontend.cluster.view import Viewer
from shared.catalog.model_status import PoolHeartbeats
from shared.protocol.role_cards import RoleCard, WorkDone, WorkerCard, WorkerState
from shared.snapshot.cluster_snapshot import ClusterSnapshot, QueueDepth

OPERATOR = Viewer("olga", is_operator=True)
TENANT = Viewer("tom", is_operator=False)


def worker(name: str, num_redelivered: int = 0, **fields: Any) -> WorkerCard:
    work = WorkDone(num_redelivered=num_redelivered, num_prefix_queries=10, num_prefix_hits=4)
    return WorkerCard(name, "p", "tiny", "r", WorkerState.READY, work=work, **fields)


def snapshot(at: float, *workers: WorkerCard, roles: Sequence[RoleCard] = ()) -> ClusterSnapshot:
    return ClusterSnapshot(
        at=at,
        models=(),
        heartbeats=PoolHeartbeats.of((), ()),
        workers=workers,
        tokens_per_s={card.worker: 10.0 for card in workers},
        step_age_s={},
        queues=[QueueDepth("tiny", "interactive", 2, 1, 1.5), QueueDepth("tiny", "batch", 3, 0)],
        roles=roles,
        events={},
        num_dead=0,
    )


def kept(history: ClusterHistory) -> list[float]:
    return [sample.at for sample in history.view(OPERATOR).samples]


def test_figures_are_sums_over_workers_and_queues() -> None:
    figures = ClusterHistory().note(
        snapshot(
            100.0,
            worker("a", num_running=1, max_running=4, kv_cache_usage=0.5, num_kv_tokens=100),
            worker("b", num_running=2, max_running=4, kv_cache_usage=0.0, num_kv_tokens=300),
        )
    )
    assert (figures.num_waiting, figures.oldest_wait_s) == (5, 1.5)
    assert (figures.num_running, figures.max_running) == (3, 8)
    assert (figures.kv_cache_usage, figures.prefix_hits) == (0.125, 0.4)
    assert figures.tokens_per_s == 20.0


def test_of_no_workers_nothing_is_made_up() -> None:
    figures = ClusterHistory().note(snapshot(100.0))
    assert (figures.kv_cache_usage, figures.prefix_hits) == (UNSET, UNSET)
    assert figures.max_running == 0


def test_counters_add_up_what_was_added_while_it_looked() -> None:
    history = ClusterHistory()

    def redelivered(at: float, *workers: WorkerCard) -> int:
        return history.note(snapshot(at, *workers)).num_redelivered

    assert redelivered(100.0, worker("a", 7)) == 0, "before its time"
    assert redelivered(101.0, worker("a", 9)) == 2
    assert redelivered(101.0, worker("a", 50)) == 2, "the same moment again"
    assert redelivered(102.0, worker("b", 3)) == 5, "b has begun since"
    assert redelivered(103.0, worker("a", 9), worker("b", 3)) == 5, "a was only not heard"
    assert redelivered(103.0 + 2 * KEPT_S) == 5, "who goes takes nothing back"


def test_samples_are_some_seconds_apart_and_end_with_their_time() -> None:
    history = ClusterHistory()
    for second in range(int(2 * KEPT_S)):
        history.note(snapshot(1000.0 + second, worker("a", max_running=4)))
    ats = kept(history)
    assert len(ats) <= KEPT_S / MIN_GAP_S + 1
    assert all(later - earlier == MIN_GAP_S for earlier, later in itertools.pairwise(ats))
    assert ats[0] >= 999.0 + KEPT_S


def test_a_clock_that_is_put_back_begins_anew() -> None:
    history = ClusterHistory()
    for at in (1000.0, 1005.0, 400.0, 405.0):
        assert history.note(snapshot(at)).at == at
    assert kept(history) == [400.0, 405.0]


def test_each_workers_share_of_slots_stands_at_its_samples() -> None:
    history = ClusterHistory()
    history.note(snapshot(100.0, worker("a", num_running=1, max_running=4)))
    history.note(snapshot(105.0, worker("a", num_running=4, max_running=4), worker("b")))
    history.note(snapshot(110.0, worker("b", num_running=9, max_running=4)))
    assert history.view(OPERATOR).slot_usage == {"a": [0.25, 1.0, None], "b": [None, None, 1.0]}
    history.note(snapshot(110.0 + 2 * KEPT_S))
    assert history.view(OPERATOR).slot_usage == {}, "nobody keeps the dead"


def test_fenced_writes_are_told_to_operators() -> None:
    history = ClusterHistory()
    for at, num_fenced in ((100.0, 4), (105.0, 6)):
        history.note(snapshot(at, roles=[RoleCard("d", "detok", num_fenced=num_fenced)]))
    assert [each.num_fenced for each in history.view(OPERATOR).samples] == [0, 2]
    assert [each.num_fenced for each in history.view(TENANT).samples] == [UNSET, UNSET]
