"""A snapshot of the service as tables for a person."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jetflock.commands.events import event_line
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import GpuCard, RoleCard, WorkerCard
from shared.snapshot.cluster_snapshot import ClusterSnapshot

NUM_EVENTS = 8

_WORKER_HEAD = (
    *("worker", "model", "state", "running", "waiting", "KV", "tokens/s", "prefix hits"),
    *("step age", "up", "host"),
)
_QUEUE_HEAD = ("model", "revision", "context", "adapters", "interactive", "batch", "oldest waits")
_ROLE_HEAD = ("role", "id", "up", "host")
_STYLES = {
    "loading": "yellow",
    "ready": "green",
    "paused": "magenta",
    "frozen": "magenta",
    "updating": "yellow",
    "draining": "cyan",
    "hung": "bold red",
}
_MIN_STEP_AGE_S = 2.0  # below it nobody needs to know


def snapshot_tables(seen: ClusterSnapshot, url: str, note: str = "") -> RenderableType:
    """Everything, one section below the other."""
    return Group(*_sections(seen, url, note))


def _sections(seen: ClusterSnapshot, url: str, note: str) -> Iterator[RenderableType]:
    moment = datetime.datetime.fromtimestamp(seen.at).astimezone()
    yield Text(f"jetflock at {url}, {moment:%H:%M:%S}{note}", style="bold")
    has_gpus = any(card.gpu is not None for card in seen.workers)
    rows = [
        [*_worker_row(card, seen), *([_gpu_text(card.gpu)] if has_gpus else [])]
        for card in seen.workers
    ]
    head = (*_WORKER_HEAD, *(["GPU"] if has_gpus else []))
    yield _table(head, rows, "no worker lives", num_texts=3)
    rows = [_queue_row(seen, model) for model in seen.models]
    yield _table(_QUEUE_HEAD, rows, "no model is known", num_texts=2)
    rows = [_role_row(card, seen) for card in seen.roles]
    yield _table(_ROLE_HEAD, rows, "no frontend and no detokenizer lives", num_texts=2)
    if seen.events:
        lines = [event_line(event) for event in [*seen.events.values()][-NUM_EVENTS:]]
        yield Text("\n" + "\n".join(lines), style="dim", no_wrap=True, overflow="ellipsis")


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str | Text]], if_empty: str, num_texts: int
) -> RenderableType:
    rows = list(rows)
    if not rows:
        return Text(f"\n{if_empty}", style="yellow")
    table = Table(box=None, header_style="bold", pad_edge=False, title_justify="left")
    for i, name in enumerate(head):
        is_text = i < num_texts or name in ("host", "GPU")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return Group(Text(), table)


def _worker_row(card: WorkerCard, seen: ClusterSnapshot) -> list[str | Text]:
    state = card.state.value
    if card.phase:
        state += f": {card.phase} {card.progress:.0%}"
    if card.role != "both":
        state += f", {card.role}"
    rate = seen.tokens_per_s.get(card.worker)
    age = seen.step_age_s.get(card.worker, 0.0)
    queries = card.work.num_prefix_queries
    return [
        card.worker,
        card.model,
        Text(state, style=_STYLES.get(card.state.value, "")),
        f"{card.num_running}/{card.max_running}",
        str(card.num_waiting),
        f"{card.kv_cache_usage:.0%}",
        "" if rate is None else f"{rate:.1f}",
        f"{card.work.num_prefix_hits / queries:.0%}" if queries else "",
        Text(f"{age:.0f} s", style="red") if age >= _MIN_STEP_AGE_S else "",
        _duration(seen.at - card.started_at),
        f"{card.host}:{card.pid}",
    ]


def _gpu_text(gpu: GpuCard | None) -> str:
    if gpu is None:
        return ""
    name = gpu.name.removeprefix("NVIDIA ")
    name = f"{gpu.num_gpus} x {name}" if gpu.num_gpus > 1 else name
    free, total = (
        f"{num_bytes / (1 << 30):.1f}" for num_bytes in (gpu.free_bytes, gpu.total_bytes)
    )
    return f"{name}, {free} of {total} GiB free, {gpu.attention}, {gpu.dtype}"


def _queue_row(seen: ClusterSnapshot, model: ModelCard) -> list[str | Text]:
    depths = [depth for depth in seen.queues if depth.model == model.name]
    by_class = {depth.job_class: depth for depth in depths}
    oldest_s = max((depth.oldest_wait_s for depth in depths), default=0.0)
    counts = [
        f"{by_class[name].num_waiting} wait, {by_class[name].num_taken} run"
        if name in by_class
        else ""
        for name in ("interactive", "batch")
    ]
    adapters = ", ".join(adapter.name for adapter in model.adapters)
    oldest = f"{oldest_s:.1f} s" if oldest_s else ""
    return [model.name, model.revision, str(model.max_context_len), adapters, *counts, oldest]


def _role_row(card: RoleCard, seen: ClusterSnapshot) -> list[str | Text]:
    return [card.role, card.id, _duration(seen.at - card.started_at), f"{card.host}:{card.pid}"]


def _duration(seconds: float) -> str:
    """The two largest units."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h"
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{rest}s"
