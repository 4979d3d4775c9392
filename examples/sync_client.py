"""The same without an event loop: `python examples/sync_client.py [NATS_URL]`."""

import sys

from jetflock import SyncClient


def main(url: str) -> None:
    """A whole answer, and one as it comes."""
    with SyncClient.connect(url) as client:
        print("models:", [model["id"] for model in client.models()])
        print(client.generate("Once upon a time", max_tokens=20, temperature=0).text)
        for chunk in client.stream(messages=[{"role": "user", "content": "Tell me a story."}]):
            print(chunk, end="", flush=True)
        print()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
