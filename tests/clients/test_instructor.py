"""instructor: objects of a class, by each way it asks an OpenAI service for them."""

from __future__ import annotations

from typing import Literal

import instructor
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

MODEL = "jetflock-demo"
MODES = [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]


class Pet(BaseModel, extra="forbid"):  # else a small model may add fields without end
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)


ASKED = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me of a cat."}],
    "response_model": Pet,
    "max_retries": 0,
}


@pytest.mark.parametrize("mode", MODES)
def test_an_object(url: str, mode: instructor.Mode) -> None:
    client = instructor.from_openai(OpenAI(base_url=url, api_key="none"), mode=mode)
    assert isinstance(client.chat.completions.create(**ASKED), Pet)


async def test_an_object_that_grows(url: str) -> None:
    client = instructor.from_openai(
        AsyncOpenAI(base_url=url, api_key="none"), mode=instructor.Mode.TOOLS
    )
    seen = [pet async for pet in client.chat.completions.create_partial(**ASKED)]
    assert seen[-1].kind in ("cat", "dog")
    assert len(seen) > 1
