"""Vercel's AI SDK, in JavaScript: chat, streams, tools, objects and vectors, by each provider."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "ai_sdk"
NODE = shutil.which("node")
PROVIDERS = ["compatible", "openai", "responses", "anthropic"]

pytestmark = pytest.mark.skipif(
    NODE is None or not (FOLDER / "node_modules").is_dir(), reason="needs node and npm"
)


def told(url: str, provider: str, story: str) -> Any:
    done = subprocess.run(
        [str(NODE), FOLDER / "ask.js", url, provider, story],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_whole_and_streamed(url: str, provider: str) -> None:
    answer = told(url, provider, "chat")
    assert "jetflock" in answer["whole"]
    assert "".join(answer["parts"]) == answer["whole"]
    assert len(answer["parts"]) > 3
    assert answer["usage"]["outputTokens"] > 5
    assert answer["reason"] == "stop"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_tool_that_must_be_called(url: str, provider: str) -> None:
    answer = told(url, provider, "tool")
    assert answer["call"]["toolName"] == "forecast"
    assert answer["call"]["input"]["days"] in ("one", "two")
    [result] = answer["results"]
    assert result["output"].startswith("rain for ")
    assert answer["again"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_object_that_grows(url: str, provider: str) -> None:
    answer = told(url, provider, "object")
    assert answer["whole"]["kind"] in ("cat", "dog")
    assert answer["seen"][-1] == answer["whole"]


def test_vectors(url: str) -> None:
    lengths = told(url, "compatible", "vectors")["lengths"]
    assert len(lengths) == 2
    assert lengths[0] == lengths[1] > 0
