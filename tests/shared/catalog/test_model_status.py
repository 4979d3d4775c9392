"""Who serves a model is judged by heartbeats."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from shared.broker.kv_bucket import KvEntry
from shared.catalog.model_status import ModelStatus, PoolHeartbeats, Standing
from shared.protocol.codec import encode
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import SUPERVISOR, RoleCard, WorkerCard, WorkerState
from tests.frontend.tiny_model import make_bundle, make_card

POOL = "p"
NOW = datetime.datetime.now(datetime.UTC)
CARD = make_card(make_bundle(), pool=POOL)
KEPT = make_card(make_bundle(), pool=POOL, is_kept=True)


def heartbeats(*states: WorkerState, failures: tuple[str, ...] = ()) -> PoolHeartbeats:
    workers = [
        KvEntry(f"{POOL}.w", encode(WorkerCard("w", POOL, "tiny", "r", state)), 1, NOW)
        for state in states
    ]
    roles = [
        KvEntry("s", encode(RoleCard("s", SUPERVISOR, pool=POOL, failure=failure)), 1, NOW)
        for failure in failures
    ]
    garbage = KvEntry("x", b"\xc1", 1, NOW)
    frontend = KvEntry("f", encode(RoleCard("f", "frontend")), 1, NOW)
    return PoolHeartbeats.of([*workers, garbage], [*roles, frontend, garbage])


@pytest.mark.parametrize(
    ("card", "seen", "status"),
    [
        (CARD, heartbeats(), ModelStatus.ABSENT),
        (KEPT, heartbeats(), ModelStatus.IDLE),
        (CARD, heartbeats(failures=("",)), ModelStatus.IDLE),
        (CARD, heartbeats(WorkerState.LOADING), ModelStatus.LOADING),
        (CARD, heartbeats(WorkerState.LOADING, WorkerState.READY), ModelStatus.READY),
        (CARD, heartbeats(WorkerState.PAUSED), ModelStatus.PAUSED),
        (CARD, heartbeats(WorkerState.UPDATING), ModelStatus.PAUSED),
        (CARD, heartbeats(WorkerState.DRAINING), ModelStatus.ABSENT),
        (CARD, heartbeats(WorkerState.READY, failures=("oh",)), ModelStatus.READY),
        (CARD, heartbeats(WorkerState.LOADING, failures=("oh",)), ModelStatus.FAILED),
        (KEPT, heartbeats(failures=("oh",)), ModelStatus.FAILED),
        (CARD, heartbeats(failures=("oh", "")), ModelStatus.IDLE),
    ],
)
def test_standing(card: ModelCard, seen: PoolHeartbeats, status: ModelStatus) -> None:
    failure = "oh" if status is ModelStatus.FAILED else ""
    assert seen.standing(card) == Standing(status, failure)


def test_who_has_loaded_it_has_served() -> None:
    assert heartbeats(WorkerState.DRAINING).has_served(POOL)
    assert not heartbeats(WorkerState.LOADING, failures=("",)).has_served(POOL)


def test_images_are_taken_as_long_as_one_worker_takes_them() -> None:
    """One that loads has not said so yet, one that leaves takes nothing any more."""
    seeing, blind = WorkerCard("a", POOL, "m", "r", WorkerState.READY), {"takes_no_images": True}

    def takes_none(*cards: WorkerCard) -> bool:
        entries = [KvEntry(f"{POOL}.{each.worker}", encode(each), 1, NOW) for each in cards]
        return PoolHeartbeats.of(entries, ()).standing(CARD).limits.takes_no_images

    one = msgspec.structs.replace(seeing, worker="b", **blind)
    assert takes_none(one)
    assert takes_none(one, msgspec.structs.replace(seeing, state=WorkerState.LOADING))
    assert takes_none(one, msgspec.structs.replace(seeing, state=WorkerState.DRAINING))
    assert takes_none(msgspec.structs.replace(one, state=WorkerState.PAUSED))
    assert not takes_none(one, seeing)
    assert not takes_none(msgspec.structs.replace(one, state=WorkerState.LOADING))
    assert not takes_none()
