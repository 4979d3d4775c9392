"""`make bench-affinity`: conversations of growing turns, over two workers and over one.

Each conversation begins with a text of its own; each turn sends all that was said before. Compared
are two workers with prefix affinity, two that pull whatever comes, and one worker, which has every
prefix: the share of prompt tokens that came from a prefix cache, and the time to the first token.
With `--tiers` one worker, whose memory holds them all, or a quarter, and a disk behind that, also
after a restart: then the same is said once more.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import cyclopts
import httpx
import uvloop

from bench.served_workers import serve_workers
from deploy.local.ports import free_port
from jetflock.bench.stage_summary import percentile

MODEL = "jetflock-demo"
TOPICS = ("dragon", "fox", "river", "garden", "bird", "moon", "boat", "bear", "tree", "star")
NUM_FIRST_WORDS = 1000
NUM_TURN_WORDS = 25
ANSWER_TOKENS = 48
PAUSE_S = 0.3  # at most, between an answer and the next turn


@dataclass(frozen=True)
class Arm:
    """One way to serve the same conversations."""

    name: str
    num_workers: int
    flags: tuple[str, ...] = ()


ARMS = (
    Arm("one worker", 1),
    Arm("two workers, affinity", 2),
    Arm("two workers, plain pulling", 2, ("--no-prefix-affinity",)),
)

_QUARTER = ("--num-kv-tokens", "4096")  # of what eight conversations of six turns have
_WITH_DISK = (*_QUARTER, "--kv-disk-dir", "{disk}")
TIER_ARMS = (
    Arm("memory for all", 1),
    Arm("memory for a quarter", 1, _QUARTER),
    Arm("and a disk", 1, _WITH_DISK),
    Arm("the same, restarted", 1, _WITH_DISK),
)


@dataclass
class Round:
    """What all turns of all conversations had."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    ttfts_s: list[float] = field(default_factory=list)  # of all turns but the first ones
    elapsed_s: float = 0.0

    @property
    def hit_rate(self) -> float:
        return self.num_cached_tokens / self.num_prompt_tokens


class Conversation:
    """A client that says something, waits for the answer, and says more."""

    def __init__(self, client: httpx.AsyncClient, seed: str, result: Round) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._result = result
        self._messages = [{"role": "user", "content": self._words(NUM_FIRST_WORDS)}]

    def _words(self, num_words: int) -> str:
        return " ".join(self._random.choice(TOPICS) for _ in range(num_words))

    async def run(self, num_turns: int) -> None:
        for turn in range(num_turns):
            if turn:
                await asyncio.sleep(self._random.uniform(0, PAUSE_S))
                self._messages.append({"role": "user", "content": self._words(NUM_TURN_WORDS)})
            answer, ttft_s = await self._say()
            if turn:
                self._result.ttfts_s.append(ttft_s)
            self._messages.append({"role": "assistant", "content": answer})

    async def _say(self) -> tuple[str, float]:
        body = {
            "model": MODEL,
            "messages": self._messages,
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent_at, ttft_s, answer = time.perf_counter(), 0.0, ""
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for event in _events(response):
                for choice in event["choices"]:
                    answer += choice["delta"].get("content") or ""
                    ttft_s = ttft_s or (time.perf_counter() - sent_at if answer else 0.0)
                if usage := event.get("usage"):
                    self._result.num_prompt_tokens += usage["prompt_tokens"]
                    details = usage["prompt_tokens_details"]
                    self._result.num_cached_tokens += details["cached_tokens"]
        return answer, ttft_s


async def _events(response: httpx.Response) -> Any:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


async def run_round(port: int, name: str, num_conversations: int, num_turns: int) -> Round:
    """All conversations at once; `name` makes them new ones."""
    result = Round()
    started = time.perf_counter()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
        await asyncio.gather(
            *(
                Conversation(client, f"{name}/{idx}", result).run(num_turns)
                for idx in range(num_conversations)
            )
        )
    result.elapsed_s = time.perf_counter() - started
    return result


def print_arm(arm: Arm, rounds: list[Round]) -> None:
    ttfts_ms = [ttft_s * 1e3 for each in rounds for ttft_s in each.ttfts_s]
    hit_rates = sorted(each.hit_rate * 100 for each in rounds)
    print(
        f"{arm.name:28} hit rate {statistics.median(hit_rates):5.1f} % "
        f"({hit_rates[0]:.1f} .. {hit_rates[-1]:.1f})   "
        f"TTFT p50 {statistics.median(ttfts_ms):6.1f} ms, p90 {percentile(ttfts_ms, 90):6.1f} ms   "
        f"all turns {statistics.median(each.elapsed_s for each in rounds):5.2f} s"
    )


def main(
    conversations: Annotated[int, cyclopts.Parameter(help="At the same time.")] = 8,
    turns: Annotated[int, cyclopts.Parameter(help="Of each conversation.")] = 6,
    repeat: Annotated[int, cyclopts.Parameter(help="Rounds of each arm, interleaved.")] = 2,
    *,
    tiers: Annotated[bool, cyclopts.Parameter(help="Compare memory and disk.")] = False,
) -> None:
    """Cache hit rate and time to first token of growing conversations."""
    arms = TIER_ARMS if tiers else ARMS
    rounds: dict[Arm, list[Round]] = {arm: [] for arm in arms}
    for number in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            for arm in arms:
                flags = (flag.format(disk=f"{folder}/kv") for flag in arm.flags)
                with serve_workers(arm.num_workers, free_port(), *flags) as serve:
                    uvloop.run(run_round(serve.port, f"warm {number}", 2, 2))
                    rounds[arm].append(
                        uvloop.run(run_round(serve.port, str(number), conversations, turns))
                    )
    print(
        f"{conversations} conversations of {turns} turns, {repeat} rounds, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for arm in arms:
        print_arm(arm, rounds[arm])


if __name__ == "__main__":
    cyclopts.run(main)
