"""What an engine does with its memory, its prefix cache and the steps that it runs."""

from __future__ import annotations

from shared.protocol.role_cards import GpuCard
from shared.telemetry.metrics import EventCounter
from worker.engine_link.engine_messages import (
    FETCH_REASONS,
    LOSS_REASONS,
    NUM_DRAFT_POSITIONS,
    REJECT_REASONS,
    EngineLoad,
    EngineReady,
)
from worker.metrics.metric_maker import MetricMaker

_GPU_BYTES = {  # kind -> field of its card
    "total": "total_bytes",
    "weights": "weight_bytes",
    "kv_cache": "kv_bytes",
    "cuda_graphs": "graph_bytes",
    "free": "free_bytes",
}


class EngineMetrics:
    """Metrics of a worker's engines, one after another: what each counts from its own start on is
    added up here.
    """

    def __init__(self, make: MetricMaker) -> None:
        self._make = make
        gauge, counter = make.gauge, make.counter
        self.num_running = gauge("num_requests_running", "Requests in the engine's batch.")
        self.num_waiting = gauge("num_requests_waiting", "Requests waiting inside the engine.")
        self.num_waiting_tokens = gauge(
            "num_prompt_tokens_waiting", "Tokens of prompts that the engine has not computed yet."
        )
        self.kv_cache_usage = gauge("kv_cache_usage_perc", "Share of KV slots in use, 0 to 1.")
        self.last_step_age_s = gauge(
            "last_step_age_seconds", "Seconds since the last engine step while requests run."
        )
        self.restarts = counter("engine_restarts", "Engine processes that died.")
        self.memory_shortages = counter(
            "gpu_memory_shortages", "Steps that did not fit into the GPU's memory at once."
        )
        self._packed_failures = counter(
            "packed_weights_failures",
            "Packed weights on disk that were damaged, or could not be kept.",
        )
        self._num_pinned_tokens = gauge(
            "prefix_cache_pinned_tokens", "Tokens of the prefix cache that requests asked to keep."
        )
        self._num_snapshots = gauge(
            "prefix_cache_states", "Recurrent states at page borders that the prefix cache holds."
        )
        self._num_snapshot_slots = gauge(
            "prefix_cache_state_slots", "Recurrent states at page borders that there is room for."
        )
        self._gpu_bytes = make.gauges(
            "gpu_memory_bytes",
            "Memory of each GPU: in all, what the engine has, what nobody holds; 0 without one.",
            "kind",
            _GPU_BYTES,
        )
        self._kernel_sets = make.gauges_as_needed(
            "kernel_set",
            "1 for the kernel set of the worker's C++; empty where it computes by other means.",
            "kernel_set",
        )
        self.set_kernel_set("")
        self._disk = DiskMetrics(make)
        # In the order of `_counts`
        self._counters = (*_step_counters(make), *self._disk.counters)
        self._counted = (0,) * len(self._counters)

    def set_kernel_set(self, name: str) -> None:
        self._kernel_sets.clear()
        self._kernel_sets.labels(self._make.model_name, name).set(1)

    def set_gpu(self, gpu: GpuCard | None) -> None:
        for kind, gauge in self._gpu_bytes.items():
            gauge.set(0 if gpu is None else getattr(gpu, _GPU_BYTES[kind]))

    def note_ready(self, ready: EngineReady | None) -> None:
        """An engine can take requests; None: it has died since."""
        self._num_snapshot_slots.set(0 if ready is None else ready.num_snapshot_slots)
        if ready is not None:
            self._packed_failures.inc(ready.num_packed_failures)

    def update(self, load: EngineLoad) -> None:
        """Adds what this load has more than the one before."""
        self._num_pinned_tokens.set(load.num_pinned_tokens)
        self._num_snapshots.set(load.num_snapshots)
        self._disk.num_bytes.set(load.tier.num_bytes)
        counts = _counts(load)
        if any(count < counted for count, counted in zip(counts, self._counted, strict=True)):
            self._counted = (0,) * len(counts)  # another engine, which begins with nothing
        for counter, count, counted in zip(self._counters, counts, self._counted, strict=True):
            counter.inc(count - counted)
        self._counted = counts


def _step_counters(make: MetricMaker) -> tuple[EventCounter, ...]:
    counter = make.counter
    return (
        counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
        counter("prefix_cache_hits", "Prompt tokens that came from the prefix cache."),
        counter("num_preemptions", "Requests retracted for want of pages."),
        counter("spec_decode_num_draft_tokens", "Tokens guessed, by --speculate or a grammar."),
        counter("spec_decode_num_accepted_tokens", "Guessed tokens that were right."),
        *make.counters(
            "spec_decode_num_accepted_tokens_per_pos",
            "Guessed tokens that were right, by their place among a step's guesses: from 0.",
            "position",
            map(str, range(NUM_DRAFT_POSITIONS)),
        ).values(),
    )


def _counts(load: EngineLoad) -> tuple[int, ...]:
    return (
        load.num_prefix_queries,
        load.num_prefix_hits,
        load.num_preemptions,
        load.num_drafted,
        load.num_accepted,
        *load.accepted_by_position,
        *load.tier.counts,
    )


class DiskMetrics:
    """Metrics of the disk behind the KV cache; zeros where there is none."""

    def __init__(self, make: MetricMaker) -> None:
        counter = make.counter
        self.num_bytes = make.gauge(
            "kv_disk_bytes", "Keys and values in --kv-disk-dir, of all workers that share it."
        )
        # In the order of `TierLoad.counts`
        self.counters = (
            counter(
                "external_prefix_cache_queries",
                "Prompt tokens looked up on the disk of the KV cache: those not found in memory.",
            ),
            counter("external_prefix_cache_hits", "Prompt tokens that came from that disk."),
            counter("kv_disk_slow_pages", "Pages found there that were faster computed than read."),
            counter("kv_disk_read_bytes", "Keys and values read from there."),
            counter("kv_disk_written_bytes", "Keys and values written there."),
            *make.counters(
                "kv_disk_rejected_pages",
                "Pages that were read there, and were not what was written, or of another engine.",
                "reason",
                REJECT_REASONS,
            ).values(),
            *make.counters(
                "kv_disk_lost_pages", "Pages that were not written there.", "reason", LOSS_REASONS
            ).values(),
            counter(
                "kv_transfer_hits", "Prompt tokens whose keys and values other workers have sent."
            ),
            counter("kv_transfer_received_bytes", "Keys and values that they have sent."),
            *make.counters(
                "kv_transfer_refused_pages",
                "Pages that they did not send, or that were not what was asked for: computed.",
                "reason",
                FETCH_REASONS,
            ).values(),
        )
