"""A frontend's NATS service that tells a fixed text, and misbehaves as a test wants it to."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable
from typing import Any, Self

from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.nats_client.connection import round_trip

RID = "0123456789abcdef0123456789abcdef"
PIECES = ("Once ", "upon ", "a ", "tïme", " there", " was", " 🦊", ".")
TEXT = "".join(PIECES)


def event_id(num_pieces: int) -> str:
    text = "".join(PIECES[:num_pieces])
    return f"{RID}.{num_pieces}.{len(text)}.{zlib.crc32(text.encode()):08x}"


def generate_event(num_pieces: int, *, finished: bool = False) -> dict[str, Any]:
    """The event after which the client has this many pieces; the finish brings no text."""
    return {
        "text": "" if finished else PIECES[num_pieces - 1],
        "output_ids": [] if finished else [num_pieces],
        "meta_info": {
            "id": RID,
            "finish_reason": {"type": "stop"} if finished else None,
            "prompt_tokens": 3,
            "completion_tokens": num_pieces,
            "cached_tokens": 1,
        },
    }


class ScriptedService:
    """Answers under `jetflock.`. `script` sends the events of one stream; None is a good one."""

    def __init__(self, nc: Client) -> None:
        self.script: Callable[[Story], Any] | None = None
        self.resumed_from: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._nc = nc
        self._stories: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, url: str) -> Self:
        nc = Client()
        await nc.connect(url, reconnect_time_wait=0.1, max_reconnect_attempts=-1)  # type: ignore[arg-type]
        service = cls(nc)
        for name in ("generate", "chat.completions", "embed"):
            await nc.subscribe(f"jetflock.{name}", queue="q", cb=service._on_start)
        await nc.subscribe("jetflock.resume", queue="q", cb=service._on_resume)
        await nc.subscribe("jetflock.abort", queue="q", cb=service._on_abort)
        await nc.subscribe("jetflock.models", queue="q", cb=service._on_models)
        assert await round_trip(nc)
        return service

    async def close(self) -> None:
        for story in self._stories:
            story.cancel()
        await asyncio.gather(*self._stories, return_exceptions=True)
        await self._nc.close()

    async def _on_start(self, msg: Msg) -> None:
        self.bodies.append(json.loads(msg.data))
        self.headers.append(dict(msg.headers or {}))
        self._begin(Story(self._nc, msg.reply, 0, self.bodies[-1], is_resumed=False))

    async def _on_resume(self, msg: Msg) -> None:
        body = json.loads(msg.data)
        self.resumed_from.append(body)
        have = int(body["event_id"].split(".")[1]) if "event_id" in body else 0
        self._begin(Story(self._nc, msg.reply, have, body, is_resumed=True))

    def _begin(self, story: Story) -> None:
        task = asyncio.create_task(self._tell(story))
        self._stories.add(task)
        task.add_done_callback(self._stories.discard)

    async def _tell(self, story: Story) -> None:
        if self.script is None:
            await story.accept()
            await story.rest()
        else:
            await self.script(story)

    async def _on_abort(self, msg: Msg) -> None:
        self.aborted.append(json.loads(msg.data)["rid"])
        await msg.respond(json.dumps({"rid": self.aborted[-1], "num_aborted": 1}).encode())

    async def _on_models(self, msg: Msg) -> None:
        await msg.respond(b'{"object": "list", "data": [{"id": "tale"}]}')


class Story:
    """One stream: what has been told, and ways to tell more, or to lie."""

    def __init__(
        self, nc: Client, reply: str, num_emitted: int, body: dict[str, Any], *, is_resumed: bool
    ) -> None:
        self.is_resumed = is_resumed
        self.body = body
        self.num_emitted = num_emitted
        self._nc = nc
        self._reply = reply

    async def send(self, data: bytes, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self._nc.publish(self._reply, data, headers={"Jetflock-Request-Id": RID} | named)

    async def status(self, status: str) -> None:
        await self.send(b"", Jetflock_Status=status)

    async def accept(self) -> None:
        await self.status("accepted")

    async def piece(self, number: int) -> None:
        data = json.dumps(generate_event(number)).encode()
        await self.send(data, Jetflock_Event_Id=event_id(number))

    async def chat(self, idx: int, delta: dict[str, Any], reason: str | None = None) -> None:
        """The event of so many before it, of an answer that is more than text."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        event: dict[str, Any] = {"choices": [choice]}
        if reason is not None:
            event["usage"] = {"prompt_tokens": 1, "completion_tokens": idx}
        before, after = (f"{RID}.{i}.{i}.00000000" for i in (idx, idx + 1))
        data = json.dumps(event).encode()
        await self.send(data, Jetflock_Event_Id=after, Jetflock_Event_Before=before)

    async def tell(self, count: int) -> None:
        for _ in range(count):
            self.num_emitted += 1
            await self.piece(self.num_emitted)

    async def finish(self) -> None:
        data = json.dumps(generate_event(len(PIECES), finished=True)).encode()
        await self.send(data, Jetflock_Event_Id=event_id(len(PIECES)))

    async def rest(self) -> None:
        """Everything to the end."""
        await self.tell(len(PIECES) - self.num_emitted)
        await self.finish()
        await self.status("end")

    async def error(self, status: int, message: str, code: str) -> None:
        body = {"error": {"message": message, "type": "t", "param": "p", "code": code}}
        headers = {"Nats_Service_Error": message, "Nats_Service_Error_Code": str(status)}
        await self.send(json.dumps(body).encode(), **headers)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
