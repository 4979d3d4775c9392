"""The same without an event loop: `python examples/sync_client.py [NATS_URL]`."""

import json
import sys

from jetflock import Client

COLOUR = {
    "name": "paint",
    "parameters": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}


def main(url: str) -> None:
    """A list of prompts, an answer as it comes, and a tool that must be called."""
    with Client(url) as client:
        print("models:", [model["id"] for model in client.models()])

        sampling = {"max_tokens": 20, "temperature": 0}
        for result in client.generate(["Once upon a time", "A dragon"], sampling):
            print(result.text)

        story = [{"role": "user", "content": "Tell me a story."}]
        for chunk in client.generate_async(messages=story):
            print(chunk.text_diff, end="", flush=True)
        print()

        result = client.generate(
            messages=[{"role": "user", "content": "Paint the wall."}],
            tools=[{"type": "function", "function": COLOUR}],
            tool_choice="required",
            max_tokens=100,
        )
        for call in result.tool_calls:
            print(call.name, json.loads(call.arguments))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
