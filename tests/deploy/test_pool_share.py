"""What of a pool's load concerns the workers of each role."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest

from deploy.scaling.autoscaler import Autoscaler, ScalePolicy
from deploy.scaling.pool_snapshot import PoolSnapshot
from deploy.scaling.pool_watch import PoolLook, PoolShare
from shared.protocol.role_cards import WorkDone, WorkerCard, WorkerRole, WorkerState


def make_card(worker: str, role: WorkerRole = "both", **fields: object) -> WorkerCard:
    state = WorkerState.READY
    return WorkerCard(worker, "p", "m", "r", state, role=role, **fields)  # type: ignore[arg-type]


def make_look(
    *cards: WorkerCard,
    pending: int = 0,
    taken: int = 0,
    new: int = 0,
    done: dict[str, WorkDone] | None = None,
    at: float = 0.0,
) -> PoolLook:
    found = {card.worker: card for card in cards}
    return PoolLook(at, pending, taken, new, 3.0, done or {}, found, found.keys())


def see(role: WorkerRole, look: PoolLook) -> PoolSnapshot:
    return PoolShare(role, max_running=4).see(look, set())


PROMPTS = make_card("p", "prefill", num_running=3, num_waiting=2, num_kept=1)
TOKENS = make_card("d", "decode", num_running=7)
OLD = make_card("old", num_running=4)  # as a build that knows no roles


class Seen(NamedTuple):
    num_ready: int
    num_waiting: int
    num_running: int
    oldest_wait_s: float


@pytest.mark.parametrize(
    ("role", "look", "expected"),
    [
        ("both", make_look(PROMPTS, TOKENS, pending=9, taken=12), Seen(2, 9, 12, 3.0)),
        ("prefill", make_look(PROMPTS, TOKENS, pending=9, taken=12), Seen(1, 9, 4, 3.0)),
        ("decode", make_look(PROMPTS, TOKENS, pending=9, taken=12), Seen(1, 1, 7, 0.0)),
        ("prefill", make_look(OLD, TOKENS, pending=9, taken=11), Seen(1, 9, 4, 3.0)),
        ("decode", make_look(TOKENS, pending=9, taken=7), Seen(1, 9, 7, 3.0)),
        ("decode", make_look(pending=9), Seen(0, 9, 0, 3.0)),
        ("prefill", make_look(TOKENS, taken=8, new=1), Seen(0, 1, 0, 3.0)),
    ],
)
def test_each_role_has_its_own_load(role: WorkerRole, look: PoolLook, expected: Seen) -> None:
    seen = see(role, look)
    assert expected == Seen(seen.num_ready, seen.num_waiting, seen.num_running, seen.oldest_wait_s)


def test_what_a_request_costs_a_role_is_told_by_those_that_left_it() -> None:
    done = {
        "p": WorkDone(num_tokens=900, num_released=3, num_finished=1, num_finished_tokens=40),
        "d": WorkDone(num_tokens=60, num_finished=2, num_finished_tokens=700),
    }
    look = make_look(PROMPTS, TOKENS, new=5, done=done)
    prompts, tokens = see("prefill", look), see("decode", look)
    assert (prompts.num_arrived, prompts.num_finished, prompts.num_finished_tokens) == (5, 4, 900)
    assert (tokens.num_arrived, tokens.num_finished, tokens.num_finished_tokens) == (3, 2, 60)
    whole = see("both", look)
    assert (whole.num_arrived, whole.num_finished, whole.num_finished_tokens) == (5, 3, 740)


def test_a_role_at_zero_is_woken_by_what_the_other_does_in_its_place() -> None:
    """And by nothing else: a stream that runs on wakes nobody."""
    policy = ScalePolicy(min_workers=0, max_workers=4, idle_s=5.0)
    roles: tuple[WorkerRole, ...] = ("prefill", "decode")
    shares = {role: PoolShare(role, 4) for role in roles}
    scalers = {role: Autoscaler(policy) for role in roles}
    seconds = itertools.count()

    def wanted(*cards: WorkerCard, **queue: int) -> tuple[int, ...]:
        look = make_look(*cards, at=float(next(seconds)), **queue)  # type: ignore[arg-type]
        seen = (
            shares[role].see(look, {card.worker for card in cards if card.role == role})
            for role in roles
        )
        return tuple(
            scaler.decide(each).num_workers
            for scaler, each in zip(scalers.values(), seen, strict=True)
        )

    idle, keeping = make_card("p", "prefill"), make_card("p", "prefill", num_kept=1)
    decoding = make_card("d", "decode", num_running=1)
    assert wanted() == (0, 0)
    assert wanted(pending=1, new=1) == (1, 1), "whoever is up first answers it"
    assert {wanted(idle, decoding, taken=1) for _ in range(4)} == {(1, 1)}
    assert wanted(idle, decoding, taken=1) == (0, 1), "nobody asks for prompts"
    assert wanted(decoding, taken=1) == (0, 1)
    assert wanted(decoding, taken=2, new=1) == (1, 1), "one came, though it did not wait"
    assert wanted(decoding, taken=2) == (1, 1), "until one is started"
    assert [wanted(idle)[1] for _ in range(6)][-1] == 0
    assert wanted(idle) == (0, 0)
    assert wanted(keeping, taken=1)[1] == 1
