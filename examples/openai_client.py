"""OpenAI's own client: `python examples/openai_client.py [URL]`."""

import sys

from openai import OpenAI


def main(url: str) -> None:
    """A chat answer, and a streamed completion."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id  # those that are served come first

    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello! Who are you?"}]
    )
    print(answer.choices[0].message.content)

    stream = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=40, stream=True
    )
    for chunk in stream:
        print(chunk.choices[0].text, end="", flush=True)
    print()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
