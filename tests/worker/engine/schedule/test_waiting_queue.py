from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.engine_fakes import make_add
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.stop_check import StopCheck
from worker.engine.schedule.waiting_queue import WINDOW, WaitingQueue

STOP_CHECK = StopCheck((), 100)


def make_req(arrival: int, priority: int = 0, arrived_at_s: float = 0.0) -> Req:
    command = make_add(arrival, [1], priority=priority, max_tokens=1)
    return Req(Arrival(command, arrival, arrived_at_s), STOP_CHECK)


def pop(queue: WaitingQueue) -> int:
    head = queue.window[0]
    queue.remove(head)
    return head.run_id


def test_the_order_is_by_priority_and_age_beyond_the_window() -> None:
    queue = WaitingQueue(aging_s=1.0)
    num_reqs = 5 * WINDOW
    for arrival in range(num_reqs):  # the later, the more important
        queue.push(make_req(arrival, priority=-arrival, arrived_at_s=arrival / 2))
    assert [pop(queue) for _ in range(num_reqs)] == list(range(num_reqs - 1, -1, -1))


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(-3, 3), st.integers(0, 9)),
            st.sampled_from(["pop", "remove", "back"]),
        ),
        max_size=300,
    ),
    st.integers(0, 2 * WINDOW),
    st.randoms(use_true_random=False),
)
def test_it_equals_a_sorted_list(story: list[object], num_first: int, random: object) -> None:
    queue = WaitingQueue(aging_s=2.0)
    expected: list[tuple[float, int, Req]] = []
    gone: list[tuple[float, int, Req]] = []
    num_arrivals = 0
    for act in [(0, idx) for idx in range(num_first)] + story:
        if isinstance(act, tuple):
            priority, at_s = act
            req = make_req(num_arrivals, priority, at_s)
            queue.push(req)
            expected.append((at_s + 2.0 * priority, num_arrivals, req))
            num_arrivals += 1
        elif act == "back" and gone:
            expected.append(gone.pop())
            queue.push(expected[-1][2])
        elif expected:
            idx = 0 if act == "pop" else random.randrange(len(expected))  # type: ignore[attr-defined]
            gone.append(expected.pop(idx))
            queue.remove(gone[-1][2])
        expected.sort()
        assert queue.window == [req for _, _, req in expected[:WINDOW]]
        assert len(queue) == len(expected)
        queue.check_integrity()


def test_those_that_left_do_not_stay_in_memory() -> None:
    queue = WaitingQueue()
    reqs = [make_req(arrival) for arrival in range(2000)]
    for req in reqs:
        queue.push(req)
    for req in reqs[WINDOW:]:
        queue.remove(req)
    assert len(queue._rest) <= 2 * WINDOW + WINDOW
