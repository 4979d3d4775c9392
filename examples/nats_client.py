"""The Python client over NATS: `python examples/nats_client.py [NATS_URL]`."""

import asyncio
import sys

from jetflock import Client


async def main(url: str) -> None:
    """Chat, a stream, a job that is read later, and a stream that is left and taken up again."""
    async with await Client.connect(url) as client:
        hello = [{"role": "user", "content": "Hello! Who are you?"}]
        result = await client.generate(messages=hello)
        print(result.text, result.usage)

        async for chunk in client.stream("Once upon a time", max_tokens=40):
            print(chunk, end="", flush=True)
        print()

        job = await client.submit("A long story:", max_tokens=60)
        print("accepted as", job.request_id)
        print((await job).finish_reason)

        job = await client.submit("Once upon a time", max_tokens=60, ignore_eos=True)
        first = await anext(aiter(job))
        rest = await client.resume(first.event_id)  # from anywhere, even after a restart
        print(first.text + (await rest).text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
