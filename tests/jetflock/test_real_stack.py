"""`jetflock serve` with the real roles: the ready block, examples, faults, and the end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
from openai import OpenAI

from jetflock import Client
from jetflock.errors import ApiError
from tests.deploy.local_stack import REAL_ROLES, REPOSITORY, LocalStack, any_alive
from tests.eventually import Looks, wait_until
from tests.forked_program import run_program
from tests.lora_adapters import save_adapter
from tests.worker.checkpoints import DEMO_MODEL

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

TOKEN_S = 0.02
SCRIPTED = (
    "--scripted",
    *("--scripted-token-s", str(TOKEN_S)),
    *("--scripted-token-low", "300"),
    *("--scripted-token-high", "1200"),
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """With the demo model, as a person would start it, and a LoRA adapter."""
    adapter = save_adapter(tmp_path_factory.mktemp("adapter"), DEMO_MODEL, size=0.1)
    loras = ("--lora", f"tuned={adapter}")
    stack = LocalStack(tmp_path_factory.mktemp("demo"), *loras, program=REAL_ROLES)
    yield stack.start().wait_ready(120)
    stack.interrupt()
    assert stack.wait_exit() == 0


@pytest.fixture(scope="module")
def scripted_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Two workers without a model, at a known pace."""
    folder = tmp_path_factory.mktemp("scripted")
    stack = LocalStack(folder, *SCRIPTED, "--workers", "2", program=REAL_ROLES)
    yield stack.start().wait_ready(60)
    stack.interrupt()
    assert stack.wait_exit() == 0


def test_the_curl_of_the_ready_block_works(stack: LocalStack) -> None:
    curl = next(line for line in stack.out.splitlines() if "curl " in line)
    done = subprocess.run(curl, shell=True, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["model"] == "jetflock-demo"
    assert answer["choices"][0]["message"]["content"]


def test_an_adapter_answers_under_its_name(stack: LocalStack) -> None:
    client = OpenAI(base_url=f"http://127.0.0.1:{stack.port}/v1", api_key="none", timeout=60)
    base, tuned = ("jetflock-demo", "tuned")
    assert [model.id for model in client.models.list()] == [base, tuned]
    texts = {
        name: client.completions.create(
            model=name, prompt="Once upon a time", max_tokens=16, temperature=0
        )
        .choices[0]
        .text
        for name in (base, tuned)
    }
    assert texts[base] != texts[tuned]


def test_a_model_that_knows_no_tools_calls_them_when_it_must(stack: LocalStack) -> None:
    """The demo model has never seen a call: the grammar makes it write one."""
    days = {"type": "integer", "minimum": 1, "maximum": 7}
    schema: dict[str, Any] = {"type": "object", "properties": {"days": days}}
    schema["required"] = ["days"]
    schema["additionalProperties"] = False
    tool: Any = {"type": "function", "function": {"name": "forecast", "parameters": schema}}
    client = OpenAI(base_url=f"http://127.0.0.1:{stack.port}/v1", api_key="none", timeout=60)
    named: Any = {"type": "function", "function": {"name": "forecast"}}
    answer = client.chat.completions.create(
        model="jetflock-demo",
        messages=[{"role": "user", "content": "Will it rain?"}],
        tools=[tool],
        tool_choice=named,
        max_tokens=300,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "forecast"
    jsonschema.validate(json.loads(call.function.arguments), schema)


@pytest.mark.parametrize(
    "example", ["nats_client.py", "sync_client.py", "plain_nats.py", "openai_client.py", "curl.sh"]
)
def test_examples_run(stack: LocalStack, example: str) -> None:
    program = "bash" if example.endswith(".sh") else sys.executable
    is_http = example in ("openai_client.py", "curl.sh")
    address = f"http://127.0.0.1:{stack.port}" if is_http else stack.nats_url
    done = subprocess.run(
        [program, REPOSITORY / "examples" / example, address],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 40


@pytest.mark.parametrize("endpoint", ["chat", "completions", "embeddings"])
def test_the_load_generator(stack: LocalStack, tmp_path: Path, endpoint: str) -> None:
    file = tmp_path / "out.json"
    command = ["bench", "serve", "--url", f"http://127.0.0.1:{stack.port}", "--endpoint", endpoint]
    load = ["--num-requests", "6", "--concurrency", "3", "--input-len", "50", "--output-len", "8"]
    done = run_program(
        *("jetflock", *command, *load, "--json", str(file)), env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    [stage] = json.loads(file.read_text())["stages"]
    assert (stage["num_ok"], stage["prompt_tokens"]) == (6, 300)
    assert stage["output_tokens"] == (0 if endpoint == "embeddings" else 48)


@pytest.mark.parametrize(
    "role",
    [
        "worker",
        pytest.param("frontend", marks=pytest.mark.nightly),  # which is the detokenizer, too
        "nats-server",
    ],
)
async def test_a_stream_survives_the_death_of_a(scripted_stack: LocalStack, role: str) -> None:
    await check_that_a_stream_survives(scripted_stack, role)


@pytest.mark.nightly
async def test_a_stream_survives_the_death_of_a_detokenizer_by_itself(tmp_path: Path) -> None:
    flags = (*SCRIPTED, "--detok-process")
    stack = LocalStack(tmp_path, *flags, program=REAL_ROLES).start().wait_ready(60)
    try:
        await check_that_a_stream_survives(stack, "detok")
    finally:
        stack.kill()


async def check_that_a_stream_survives(stack: LocalStack, role: str) -> None:
    async with Client(stack.nats_url) as client:
        params: dict[str, Any] = {"max_tokens": 100, "seed": 7, "ignore_eos": True}
        params |= {"logprobs": 2, "prompt_logprobs": 1}
        expected = await client.generate_async("Once upon a time", **params)
        job = client.generate_async("Once upon a time", **params)
        await anext(aiter(job))
        kill_all(stack, role)
        result = await job.aresult(60)
    assert result.text == expected.text
    assert result.finish_reason == "length"
    assert result.choices == expected.choices  # token ids and logprobs with them
    (choice,) = result.choices
    assert [each.token_id for each in choice.logprobs] == choice.token_ids
    assert len(choice.prompt_logprobs) > 1


async def test_a_stream_survives_the_order_to_kill_its_worker(scripted_stack: LocalStack) -> None:
    def admin(*argv: str) -> str:
        done = run_program("jetflock", "admin", *argv, "--nats-url", scripted_stack.nats_url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def busy_worker() -> dict[str, Any]:
        async for _ in Looks(60, longest_pause_s=0.3):  # their next heartbeats tell it
            cards = json.loads(await asyncio.to_thread(admin, "workers", "--json"))
            found: list[dict[str, Any]] = [card for card in cards if card["running"]]
            if len(found) == 1:
                break
        return found[0]

    async with Client(scripted_stack.nats_url) as client:
        params: dict[str, Any] = {"max_tokens": 500, "seed": 8, "ignore_eos": True}
        job = client.generate_async("Once upon a time", **params)
        await anext(aiter(job))
        busy = await busy_worker()
        engine = psutil.Process(busy["pid"]).children()
        assert await asyncio.to_thread(admin, "kill", busy["worker"]) == f"{busy['worker']}\tok\n"
        result = await job.aresult(60)
        expected = await client.generate_async("Once upon a time", **params)
    assert result.text == expected.text
    assert not any_alive(engine)
    told = admin("workers", "--json")
    assert busy["worker"] not in told


def kill_all(stack: LocalStack, role: str) -> None:
    """All processes of a role: of two workers, one is sure to run the request."""
    processes = stack.roles(role)
    assert processes, f"no {role} runs"
    for process in processes:
        process.kill()


async def test_ctrl_c_in_the_middle_of_streams(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path, *SCRIPTED, "--workers", "2", program=REAL_ROLES)
    stack.start().wait_ready(60)
    try:
        async with Client(stack.nats_url) as client:
            for _ in range(4):
                await client.generate_async("Once", max_tokens=1900, ignore_eos=True).aaccepted()
            tree = stack.processes()
            started_at = time.monotonic()
            stack.interrupt(signal.SIGINT)
            assert await asyncio.to_thread(stack.wait_exit) == 0
            assert time.monotonic() - started_at < 5
            wait_until(lambda: not any_alive(tree), timeout_s=1)
    finally:
        stack.kill()


def test_kill_9_leaves_nobody_behind_and_the_next_start_goes_on(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path, *SCRIPTED, program=REAL_ROLES).start().wait_ready(60)
    try:
        request_id = asyncio.run(submit_one(stack.nats_url))
        tree = stack.processes()
        assert len(tree) == 4  # nats-server, frontend with detokenizer, worker, engine
        stack.process.kill()
        stack.process.wait()
        wait_until(lambda: not any_alive(tree), timeout_s=3)
        stack.start().wait_ready(60)
        assert asyncio.run(num_tokens_of(stack.nats_url, request_id)) == 150
    finally:
        stack.kill()


async def submit_one(url: str) -> str:
    async with Client(url) as client:
        job = client.generate_async("Once", max_tokens=150, ignore_eos=True)
        await anext(aiter(job))
        return job.request_id


async def num_tokens_of(url: str, request_id: str) -> int:
    async with Client(url) as client:
        result = await client.resume(request_id).aresult(60)
        return len(result.choices[0].token_ids)


PET_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_kept_over_http(stack: LocalStack, stream: bool) -> None:
    openai = OpenAI(base_url=f"http://127.0.0.1:{stack.port}/v1", api_key="none")
    request: dict[str, Any] = {
        "model": "jetflock-demo",
        "messages": [{"role": "user", "content": "Tell me about a cat."}],
        "seed": 3,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "pet", "strict": True, "schema": PET_SCHEMA},
        },
    }
    if stream:
        chunks = [
            chunk.choices[0] for chunk in openai.chat.completions.create(stream=True, **request)
        ]
        text = "".join(chunk.delta.content or "" for chunk in chunks)
        finish_reason = chunks[-1].finish_reason
    else:
        choice = openai.chat.completions.create(**request).choices[0]
        text, finish_reason = choice.message.content or "", choice.finish_reason
    jsonschema.validate(json.loads(text), PET_SCHEMA)
    assert finish_reason == "stop"


async def test_a_schema_is_kept_over_nats(stack: LocalStack) -> None:
    async with Client(stack.nats_url) as client:
        plain = await client.generate_async(
            "A cat:", json_schema=PET_SCHEMA, max_tokens=200, seed=5
        )
        messages = [{"role": "user", "content": "Tell me about a dog."}]
        chat = await client.generate_async(
            messages=messages, response_format={"type": "json_object"}, seed=6, max_tokens=100
        )
        jsonschema.validate(json.loads(plain.text), PET_SCHEMA)
        if chat.finish_reason == "stop":
            assert isinstance(json.loads(chat.text), dict)
        with pytest.raises(ApiError) as caught:
            await client.generate_async("A cat:", regex="(a")
        assert caught.value.status == 400
