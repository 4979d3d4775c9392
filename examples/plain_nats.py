"""Nothing but a NATS client, in any language: `python examples/plain_nats.py [NATS_URL]`.

One answer by request and reply, and one as a stream of messages to an inbox of our own.
"""

import asyncio
import json
import sys

import nats


async def main(url: str) -> None:
    """Ask, then listen."""
    nc = await nats.connect(url)

    body = {"text": "Once upon a time", "max_tokens": 16}
    reply = await nc.request("jetflock.generate", json.dumps(body).encode(), timeout=60)
    print(json.loads(reply.data)["text"])

    inbox = nc.new_inbox()
    messages = await nc.subscribe(inbox)
    body = {"text": "Once upon a time", "max_tokens": 32, "stream": True}
    await nc.publish("jetflock.generate", json.dumps(body).encode(), reply=inbox)
    while True:
        message = await messages.next_msg(timeout=10)  # a sign of life comes every 2 s
        headers = message.headers or {}
        if "Nats-Service-Error" in headers:
            raise SystemExit(f"{headers['Nats-Service-Error-Code']}: {message.data.decode()}")
        match headers.get("Jetflock-Status"):
            case "accepted":
                print("request", headers["Jetflock-Request-Id"])
            case "waiting":
                continue
            case "end":
                break
            case _:
                # After a loss, send {"event_id": headers["Jetflock-Event-Id"]} to jetflock.resume.
                print(json.loads(message.data)["text"], end="", flush=True)
    print()
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
