"""What was accepted counts from then on, also while a look does not see it yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from frontend.inference.admission.drain_rate import QueueWatch
from shared.subjects import Subjects

KEY = ("pool", "interactive")


class Queue:
    """A stream, and what its consumers have before them: all in one lane."""

    def __init__(self) -> None:
        self.num_messages = 0

    async def api(self, operation: str) -> dict[str, Any]:
        if operation.startswith("CONSUMER"):
            is_first = operation.endswith("interactive")
            return {"num_pending": self.num_messages if is_first else 0, "num_ack_pending": 0}
        state = {"messages": self.num_messages, "bytes": 0, "last_seq": self.num_messages}
        return {"state": state, "config": {"max_msgs": 100, "max_bytes": 100}}


async def test_a_look_forgets_nothing_that_is_on_its_way_to_the_queue() -> None:
    queue = Queue()
    watch = QueueWatch(cast(Any, SimpleNamespace(js=queue, subjects=Subjects())))
    assert watch.num_queued(*KEY) == 0
    watch.note_accepted(*KEY, 1)
    await watch._look()
    assert watch.num_queued(*KEY) == 1
    queue.num_messages = 1
    watch.note_stored(*KEY, 1)
    await watch._look()
    assert watch.num_queued(*KEY) == 1
    queue.num_messages = 0
    await watch._look()
    assert watch.num_queued(*KEY) == 0
