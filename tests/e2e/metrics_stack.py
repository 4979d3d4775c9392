"""`python -m tests.e2e.metrics_stack > docs/all-metrics.md`, from a scrape of all roles."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from shared.nats_client.connection import round_trip
from shared.subjects import pool_slug
from tests.e2e.role_stack import MODEL_NAME, SCRIPTED, RoleStack
from tests.e2e.streams import completion_body, run_stream
from tests.eventually import Looks
from tests.nats_server import free_port

OPEN_METRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
ROLES = ("frontend", "worker", "detok", "autoscale")
# What the client library tells of every Python process; the table names them in a sentence.
COMMON = ("process_", "python_")
_HEAD = """\
# All metrics

Made by `python -m tests.e2e.metrics_stack > docs/all-metrics.md` from a scrape of all roles.
[metrics.md](metrics.md) says where to read them, and what to watch.

`process_*` and `python_*` are those of Prometheus's Python client;
`jetflock_engine_process_*` are the same of a worker's engine process.
`jetflock_frontend_queue_*`, `_workers`, `_stream_usage_ratio` and `_dead_requests` are the same
on every frontend: take the maximum.

"""
_PACE = "jetflock_frontend_request_time_per_output_token_seconds"
# Of a sample's own kind, not of the metric.
_SAMPLE_LABELS = {"le", "quantile"}


@dataclass
class Known:
    """What the scrapes of all roles say of one metric."""

    kind: str
    text: str
    roles: list[str] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    samples: set[str] = field(default_factory=set)  # names, as queries use them
    bounds: set[str] = field(default_factory=set)  # `le` of a histogram


@contextlib.asynccontextmanager
async def running_roles(folder: Path) -> AsyncIterator[dict[str, str]]:
    """All roles, with a model and a bit of traffic behind them: role -> address of its metrics."""
    ports = {role: free_port() for role in ("worker", "detok", "deploy.autoscale")}

    def flags(role: str) -> list[str]:
        return ["--metrics-port", str(ports[role])] if role in ports else []

    async with RoleStack(folder, role_flags=flags) as stack:
        stack.start_worker(*SCRIPTED)
        stack.start_autoscaler("--workers", "0..1", *SCRIPTED)
        await stack.wait_ready(1)
        urls = {"frontend": f"{stack.url()}/metrics"}
        for role, port in ports.items():
            urls[role.removeprefix("deploy.")] = f"http://127.0.0.1:{port}/metrics"
        await _use(stack, urls)
        yield urls


async def scrape(url: str) -> list[Metric]:
    """As Prometheus does."""
    async with httpx.AsyncClient(timeout=20) as client:
        answer = await client.get(url, headers=OPEN_METRICS)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    return list(text_string_to_metric_families(answer.text))


async def known_metrics(urls: Mapping[str, str]) -> dict[str, Known]:
    """By name, over all roles."""
    found: dict[str, Known] = {}
    for role in ROLES:
        for metric in await scrape(urls[role]):
            known = found.setdefault(metric.name, Known(metric.type, metric.documentation))
            assert (known.kind, known.text) == (metric.type, metric.documentation), metric.name
            known.roles.append(role)
            for sample in metric.samples:
                known.samples.add(sample.name)
                known.labels |= set(sample.labels) - _SAMPLE_LABELS
                known.bounds |= {sample.labels["le"]} if "le" in sample.labels else set()
    return found


def page(known: Mapping[str, Known]) -> str:
    """docs/all-metrics.md: a table by name."""
    lines = ["| metric | of | type | labels | is |", "|---|---|---|---|---|"]
    for name, metric in sorted(known.items()):
        if not name.startswith(COMMON):
            name = f"{name}_total" if metric.kind == "counter" else name
            roles = "all" if len(metric.roles) == len(ROLES) else ", ".join(metric.roles)
            labels = ", ".join(f"`{label}`" for label in sorted(metric.labels))
            lines.append(f"| `{name}` | {roles} | {metric.kind} | {labels} | {metric.text} |")
    return _HEAD + "\n".join(lines) + "\n"


async def _use(stack: RoleStack, urls: Mapping[str, str]) -> None:
    """So that metrics with labels have some: a request, a wrong one, and words of strangers."""
    async with asyncio.timeout(60):
        while True:  # on a busy machine a whole answer may come as one piece, which has no pace
            await run_stream(stack.url(), max_tokens=50)
            if await _is_shown(urls["frontend"], _PACE):
                break
    async with httpx.AsyncClient(timeout=30) as client:
        body = completion_body(max_tokens=-1)
        assert (await client.post(f"{stack.url()}/v1/completions", json=body)).status_code == 400
    subjects, nc = stack.cluster.subjects, stack.cluster.nc
    roles = await stack.cluster.bucket(subjects.roles_bucket).entries()
    frontends = [entry.key for entry in roles if entry.key.startswith("frontend")]
    pool = pool_slug(MODEL_NAME)
    for subject in (subjects.control(pool), subjects.replay(0), *map(subjects.reply, frontends)):
        await nc.publish(subject, b"\xc1", reply=nc.new_inbox())
    assert await round_trip(nc)
    for role in ("frontend", "worker", "detok"):
        await until_shown(urls[role], "jetflock_malformed_messages")
    await until_shown(urls["frontend"], "jetflock_frontend_workers")
    await until_shown(urls["autoscale"], "jetflock_autoscaler_wanted_workers")


async def until_shown(url: str, name: str) -> None:
    """There are samples of it."""
    async for _ in Looks(60, longest_pause_s=0.2):
        if await _is_shown(url, name):
            return


async def _is_shown(url: str, name: str) -> bool:
    try:
        return any(metric.name == name and metric.samples for metric in await scrape(url))
    except httpx.TransportError:
        return False  # it starts


async def _print_page() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with running_roles(Path(folder)) as urls:
            sys.stdout.write(page(await known_metrics(urls)))


if __name__ == "__main__":
    asyncio.run(_print_page())
