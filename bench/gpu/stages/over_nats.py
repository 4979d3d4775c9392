"""The whole service over a nats-server of its own, beside the same engine without all that."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import nats

from bench.gpu.direct_engine import random_prompts
from bench.gpu.rig import Rig
from bench.gpu.shapes import write_config
from bench.local_serve import local_serve
from bench.stream_client import StreamProtocol, StreamResult, http_request, stream_at_once
from deploy.local.ports import free_port
from jetflock.bench.stage_summary import percentile

PROMPT_LEN = 32
READY_S = 90.0
WARM_UP_SEED, SEED = 1, 2


@dataclass(frozen=True, slots=True)
class Served:
    """Streams that ran at once, through frontend, JetStream, worker and detokenizer."""

    streams: Sequence[StreamResult]
    num_messages: int  # that JetStream stored meanwhile
    elapsed_s: float

    @property
    def token_s(self) -> float:
        return statistics.median(stream.token_s for stream in self.streams)

    @property
    def ttft_s(self) -> float:
        return statistics.median(stream.ttft_s for stream in self.streams)

    @property
    def gap_p99_s(self) -> float:
        return percentile([gap for stream in self.streams for gap in stream.gaps_s], 99)


def run(rig: Rig) -> None:
    served = _serve(rig)  # first: its worker has the GPU for itself
    engine = rig.engine(max_running=max(rig.sizes.streams))
    for num_streams, over_nats in served.items():
        for seed in (WARM_UP_SEED, SEED):
            ran = engine.run(_prompts(num_streams, seed), [rig.sizes.stream_tokens] * num_streams)
        step_s = ran.step_s(num_streams)
        rig.tell(
            {
                "model": rig.task.model,
                "streams": num_streams,
                "token_ms": over_nats.token_s * 1e3,
                "direct_ms": step_s * 1e3,
                "added_ms": (over_nats.token_s - step_s) * 1e3,
                "gap_p99_ms": over_nats.gap_p99_s * 1e3,
                "ttft_ms": over_nats.ttft_s * 1e3,
                "direct_ttft_ms": statistics.median(ran.first_token_s) * 1e3,
                "tokens_per_s": num_streams * rig.sizes.stream_tokens / over_nats.elapsed_s,
                "messages_per_s": over_nats.num_messages / over_nats.elapsed_s,
            }
        )


def _serve(rig: Rig) -> dict[int, Served]:
    """By the number of streams."""
    model, nats_port = rig.task.model, free_port()
    flags = {
        "device": "cuda" if rig.is_gpu else "cpu",
        "attention-backend": rig.backend,
        "dtype": "bfloat16" if rig.is_gpu else "float32",
        "load-format": "dummy",
        "max-running": max(rig.sizes.streams),
        "nats-port": nats_port,
    } | ({} if rig.is_gpu else {"num-kv-tokens": 4096, "max-step-tokens": 64})
    words = [f"--{name}={value}" for name, value in flags.items()]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in rig.task.engine.items()]
    path = write_config(rig.folder, model)
    with local_serve(str(path), *words, timeout_s=READY_S) as serve:
        found = {}
        for num_streams in rig.sizes.streams:
            for seed in (WARM_UP_SEED, SEED):
                payloads = [
                    _payload(serve.port, model, prompt, rig.sizes.stream_tokens)
                    for prompt in _prompts(num_streams, seed)
                ]
                found[num_streams] = asyncio.run(_stream(serve.port, nats_port, payloads))
        return found


def _prompts(num_streams: int, seed: int) -> list[list[int]]:
    return random_prompts([PROMPT_LEN] * num_streams, seed=1000 * num_streams + seed)


def _payload(port: int, model: str, prompt: list[int], num_tokens: int) -> bytes:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    return http_request(port, "/v1/completions", body)


async def _stream(port: int, nats_port: int, payloads: Sequence[bytes]) -> Served:
    connection = await nats.connect(f"nats://127.0.0.1:{nats_port}")
    try:
        before, begin = await _num_messages(connection), time.perf_counter()
        streams = await stream_at_once(port, payloads, StreamProtocol)
        elapsed_s = time.perf_counter() - begin
        num_messages = await _num_messages(connection) - before
    finally:
        await connection.close()
    refused = [stream.status for stream in streams if stream.status != 200]
    if refused:
        raise RuntimeError(f"{len(refused)} of {len(streams)} streams got HTTP {refused[0]}")
    return Served(streams, num_messages, elapsed_s)


async def _num_messages(connection: nats.NATS) -> int:
    """Ever stored, in all streams."""
    infos = await connection.jetstream().streams_info()
    return sum(info.state.last_seq for info in infos)
