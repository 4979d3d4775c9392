"""The Python client over NATS, in asyncio: `python examples/nats_client.py [NATS_URL]`."""

import asyncio
import sys

from jetflock import Client


async def main(url: str) -> None:
    """A chat, a stream, many at once, a stream that is left and taken up again, and an abort."""
    async with Client(url) as client:
        hello = [{"role": "user", "content": "Hello! Who are you?"}]
        result = await client.generate_async(messages=hello)
        print(result.text, result.usage)

        async for chunk in client.generate_async("Once upon a time", max_tokens=40):
            print(chunk.text_diff, end="", flush=True)
        print()

        prompts = ["A cat", "A dragon", "A horse"]
        jobs = [client.generate_async(prompt, max_tokens=10) for prompt in prompts]
        print([result.text for result in await asyncio.gather(*jobs)])

        job = client.generate_async("Once upon a time", max_tokens=60, ignore_eos=True)
        first = await anext(aiter(job))
        rest = await client.resume(first.event_id)  # from anywhere, even after a restart
        print(first.text_diff + rest.text)

        job = await client.generate_async("A long story:", max_tokens=1000).aaccepted()
        print("accepted as", job.request_id)
        try:
            await job.aresult(timeout=0.01)
        except TimeoutError:  # it runs on, until somebody aborts it
            print("choices aborted:", await job.aabort())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
