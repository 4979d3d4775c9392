"""`make bench-roles`: what long prompts do to streams that decode, with and without roles.

Some streams decode all the time; beside them prompts of thousands of tokens come one after the
other. Two workers of a thread each do both, or one computes prompts and the other decodes, with a
folder for keys and values between them, or a folder each and TCP. The arms take turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import httpx
import uvloop

from bench.checkpoint import CONTEXT_LEN, ensure_checkpoint
from bench.local_serve import LocalServe
from bench.model_shape import LLAMA_135M
from bench.served_workers import another_worker, open_own_cluster, serve_workers
from deploy.local.ports import free_port
from jetflock.bench.stage_summary import percentile
from shared.broker.kv_bucket import readable
from shared.protocol.role_cards import WorkerCard

LONG_TOKENS = 32  # of output behind a long prompt
SHORT_PROMPT = 32  # tokens
FIRST_ID = 300  # of random prompts


@dataclass
class Round:
    """Seconds, of one arm."""

    gaps_s: list[float] = field(default_factory=list)  # between tokens of decoding streams
    gaps_beside_s: list[float] = field(default_factory=list)  # of these, beside a long prompt
    ttfts_s: list[float] = field(default_factory=list)  # of long prompts
    second_s: list[float] = field(default_factory=list)  # from their first token to the next
    share_found: float = 0.0  # of all prompts, by who decodes them: in memory, or in the folder


class Load:
    """Clients of one arm."""

    def __init__(self, port: int, result: Round, seed: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._result = result
        self._random = random.Random(seed)
        self._num_long = 0  # that wait for their first token
        self._is_over = False

    async def run(self, num_streams: int, num_prompts: int, prompt_len: int) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=600, limits=limits, verify=False) as client:
            streams = [asyncio.create_task(self._decode(client)) for _ in range(num_streams)]
            await asyncio.sleep(2.0)
            for _ in range(num_prompts):
                await self._prefill(client, prompt_len)
                await asyncio.sleep(0.5)
            self._is_over = True
            await asyncio.gather(*streams)

    async def _decode(self, client: httpx.AsyncClient) -> None:
        """One stream behind the other."""
        while not self._is_over:
            last_at = 0.0
            async for _ in self._tokens(client, SHORT_PROMPT, 400):
                now = time.perf_counter()
                if last_at:
                    gaps_s = self._result.gaps_beside_s if self._num_long else self._result.gaps_s
                    gaps_s.append(now - last_at)
                last_at = now
                if self._is_over:
                    return

    async def _prefill(self, client: httpx.AsyncClient, prompt_len: int) -> None:
        sent_at = time.perf_counter()
        self._num_long += 1
        arrivals: list[float] = []
        async for _ in self._tokens(client, prompt_len, LONG_TOKENS):
            if not arrivals:
                self._num_long -= 1
            arrivals.append(time.perf_counter())
        self._result.ttfts_s.append(arrivals[0] - sent_at)
        self._result.second_s.append(arrivals[1] - arrivals[0])

    async def _tokens(
        self, client: httpx.AsyncClient, prompt_len: int, num_tokens: int
    ) -> AsyncIterator[None]:
        ids = [self._random.randrange(FIRST_ID, LLAMA_135M.vocab_size) for _ in range(prompt_len)]
        body: dict[str, Any] = {
            "model": "bench",
            "prompt": ids,
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 1,  # random weights say the same for ever else, which may be no text
            "stream": True,
        }
        async with client.stream("POST", self._url, json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                    yield


@dataclass(frozen=True)
class Arm:
    """One way to serve the same load."""

    name: str
    flags: tuple[str, ...] = ()
    other: tuple[str, ...] = ()  # flags of a worker that is started beside the first


@contextmanager
def serve_arm(arm: Arm, model: Path, nats_port: int) -> Iterator[LocalServe]:
    """Two workers."""
    named = (str(model), "--model-name", "bench")
    num_workers = 1 if arm.other else 2
    with ExitStack() as stack:
        served = serve_workers(num_workers, nats_port, *named, *arm.flags)
        serve = stack.enter_context(served)
        if arm.other:
            stack.enter_context(another_worker(nats_port, 2, *named, *arm.other))
        yield serve


async def share_found(nats_port: int) -> float:
    """By the workers that decode."""
    async with open_own_cluster(nats_port) as cluster:
        entries = await cluster.bucket(cluster.subjects.workers_bucket).entries()
    works = [card.work for card in readable(WorkerCard, entries) if card.role == "decode"]
    num_queries = sum(work.num_prefix_queries for work in works)
    return sum(work.num_prefix_hits for work in works) / (num_queries or 1)


def print_arm(arm: Arm, rounds: list[Round]) -> None:
    def told(name: str, values_s: list[float]) -> str:
        ms = [each * 1e3 for each in values_s]
        return f"{name} p50 {statistics.median(ms):7.1f} p99 {percentile(ms, 99):8.1f} ms"

    gaps_s = [gap for each in rounds for gap in each.gaps_s]
    beside_s = [gap for each in rounds for gap in each.gaps_beside_s]
    ttfts_s = [each_s for each in rounds for each_s in each.ttfts_s]
    second_s = [each_s for each in rounds for each_s in each.second_s]
    shares = [each.share_found for each in rounds]
    print(
        f"{arm.name:30} {told('ITL beside a prompt', beside_s)}   {told('alone', gaps_s)}   "
        f"{told('TTFT of prompts', ttfts_s)}   {told('their second token', second_s)}   "
        f"found by who went on {statistics.mean(shares):.0%}"
    )


def main(
    streams: Annotated[int, cyclopts.Parameter(help="That decode.")] = 4,
    prompts: Annotated[int, cyclopts.Parameter(help="Long ones, one behind the other.")] = 6,
    prompt_len: Annotated[int, cyclopts.Parameter(help="Tokens of each.")] = 4096,
    repeat: Annotated[int, cyclopts.Parameter(help="Rounds of each arm, interleaved.")] = 2,
    model: Annotated[Path, cyclopts.Parameter(help="Made there if it is not.")] = Path(
        ".data/bench/llama-135m"
    ),
    folder: Annotated[str, cyclopts.Parameter(help="Where keys and values meet.")] = "/dev/shm",
) -> None:
    """Time between tokens beside long prompts."""
    assert prompt_len + LONG_TOKENS <= CONTEXT_LEN
    ensure_checkpoint(model)
    with tempfile.TemporaryDirectory(dir=folder) as kv_dir:
        apart = ("--decode-workers", "1", "--kv-disk-dir", f"{kv_dir}/kv")
        bind = ("--kv-transfer-bind", "127.0.0.1:0")
        sends = ("--role", "prefill", "--kv-disk-dir", f"{kv_dir}/sends", *bind)
        fetches = ("--role", "decode", "--kv-disk-dir", f"{kv_dir}/fetches")
        arms = (
            Arm("two that do both"),
            Arm("one prefills, one decodes", apart),
            Arm("the same over TCP", sends, fetches),
        )
        rounds: dict[Arm, list[Round]] = {arm: [] for arm in arms}
        for number in range(repeat):
            for arm in arms:
                nats_port = free_port()
                with serve_arm(arm, model, nats_port) as serve:
                    result = Round()
                    load = Load(serve.port, result, number)
                    uvloop.run(load.run(streams, prompts, prompt_len))
                    result.share_found = uvloop.run(share_found(nats_port))
                    rounds[arm].append(result)
    print(
        f"{streams} streams, {prompts} prompts of {prompt_len} tokens, {repeat} rounds, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for arm in arms:
        print_arm(arm, rounds[arm])


if __name__ == "__main__":
    cyclopts.run(main)
