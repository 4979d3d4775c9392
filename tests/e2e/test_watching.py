"""Many look on at one stream over HTTP and NATS, while each who has a part in it is killed: all see
the same, and what is sent does not grow with their number.

A token of the scripted engine depends on prompt, seed and position alone.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest
from nats.aio.msg import Msg

from jetflock.client.client import Client
from shared.protocol.codec import decode_text_frame
from tests.e2e.role_stack import REPOSITORY, SCRIPTED, RoleStack
from tests.e2e.streams import Stream, completion_body, http_client, run_stream
from tests.forked_program import ForkedProgram

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(120),
]

NUM_TOKENS = 250  # 5 s
NUM_WATCHERS = 8


class Watcher(Stream):
    """Looks on over HTTP, at the next frontend when one is gone."""

    num_cuts = 0

    async def watch(self, urls: list[str], rid: str) -> None:
        while not self.is_done:
            headers = {"Last-Event-ID": self.last_event_id} if self.last_event_id else {}
            path = f"{urls[0]}/v1/streams/{rid}?watch=true"
            try:
                async with (
                    http_client() as client,
                    client.stream("GET", path, headers=headers) as response,
                ):
                    if response.status_code != 503:
                        await self.read(response)
            except (OSError, httpx.TransportError):
                self.num_cuts += 1
            urls = [*urls[1:], urls[0]]
            await asyncio.sleep(0.1)


class Tail:
    """`jetflock tail` as a process."""

    def __init__(self, folder: Path, urls: list[str], rid: str) -> None:
        self._out = folder / "tail.out"
        self.process = ForkedProgram(
            [sys.executable, "-m", "jetflock.commands.tail", rid, "--url", ",".join(urls)],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            out=self._out,
            err=self._out,
        )

    @property
    def text(self) -> str:
        return self._out.read_text()


class Heard:
    """What detokenizers send to frontends: tokens of one request, by frontend and place."""

    def __init__(self) -> None:
        self.times: Counter[tuple[str, int]] = Counter()
        self.rid = ""

    async def listen(self, stack: RoleStack) -> None:
        await stack.cluster.nc.subscribe(stack.cluster.subjects.reply("*"), cb=self._on_frame)

    async def _on_frame(self, message: Msg) -> None:
        for chunk in decode_text_frame(message.data).chunks:
            if chunk.rid == self.rid:
                places = range(chunk.position - len(chunk.token_ids), chunk.position)
                self.times.update((message.subject, place) for place in places)


async def test_all_see_the_same_whoever_is_killed(tmp_path: Path) -> None:
    async with RoleStack(tmp_path, "--ack-wait-s", "3") as stack:
        doomed, detok = stack.roles
        worker = stack.start_worker(*SCRIPTED)
        stack.start_detok()
        lasting = stack.start_frontend()
        await stack.wait_ready(1)
        urls = [stack.url(), stack.url(lasting)]
        expected = await run_stream(urls[1], seed=1, max_tokens=NUM_TOKENS)
        heard = Heard()
        await heard.listen(stack)

        reader, watchers = Stream(), [Watcher() for _ in range(NUM_WATCHERS)]
        over_nats: list[str] = []
        async with asyncio.TaskGroup() as tasks, Client(stack.nats.url) as client:
            body = completion_body(seed=1, max_tokens=NUM_TOKENS)
            reading = tasks.create_task(reader.post(urls[1], body))
            await reader.wait_for_tokens(1)
            heard.rid = rid = reader.rid
            for watcher in watchers[: NUM_WATCHERS - 2]:
                tasks.create_task(watcher.watch(urls, rid))
            jobs = [client.watch(rid), client.watch(rid)]
            tail = Tail(tmp_path, urls, rid)
            for watcher in watchers[: NUM_WATCHERS - 2]:
                await watcher.wait_for_tokens(30)
            # Each token came to each frontend once, however many look on there: it is not asked
            # for again by those who come late.
            subjects = {subject for subject, _ in heard.times}
            assert len(subjects) == 2
            assert set(heard.times.values()) == {1}

            stack.start_worker(*SCRIPTED)
            await stack.wait_ready(2)
            worker.kill()
            await watchers[0].wait_for_tokens(reader.position + 10)
            late, rewound = watchers[-2:]
            tasks.create_task(late.watch(urls, rid))
            await late.wait_for_tokens(1)
            detok.kill()
            stack.start_detok()
            await watchers[0].wait_for_tokens(reader.position + 10)
            doomed.kill()
            rewound.last_event_id, rewound.text = place_of(late)
            tasks.create_task(rewound.watch(urls[::-1], rid))
            await reading
            over_nats += [(await job.aresult(30)).text for job in jobs]
        await stack.wait_until(lambda: tail.process.poll() is not None)
        assert reader.text == expected.text
        assert [watcher.text for watcher in watchers] == [expected.text] * NUM_WATCHERS
        assert sum(watcher.num_cuts for watcher in watchers) >= NUM_WATCHERS - 1
        assert over_nats == [expected.text] * 2
        assert tail.text == expected.text + "\n"
        await stack.until_queued(0)


def place_of(stream: Stream) -> tuple[str, str]:
    """Of its last event, and what it has shown by then."""
    return stream.last_event_id, stream.text
