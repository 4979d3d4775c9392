"""Counts and measures what a worker does, for its metrics and its card."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from shared.protocol.finish import FinishReason
from shared.protocol.role_cards import GpuCard, WorkDone, WorkerState
from shared.telemetry.histograms import REQUEST_S, STEP_TOKENS, TOKEN_S, TOKENS, EventHistogram
from shared.telemetry.metrics import METRICS_PREFIX, EventCounter
from shared.telemetry.startup_phases import StartupPhases
from worker.engine_link.engine_messages import (
    FETCH_REASONS,
    LOSS_REASONS,
    NUM_DRAFT_POSITIONS,
    REJECT_REASONS,
    EngineLoad,
)
from worker.held.held_request import HeldRequest
from worker.transfer.page_server import REFUSED_CONNECTIONS

_GPU_BYTES = {  # kind -> field of its card
    "total": "total_bytes",
    "weights": "weight_bytes",
    "kv_cache": "kv_bytes",
    "cuda_graphs": "graph_bytes",
    "free": "free_bytes",
}


class RunMetrics:
    """Metrics of finished runs, vLLM's under our prefix; what a client feels frontends tell."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> EventHistogram:
            made = EventHistogram(
                f"{METRICS_PREFIX}_{name}", text, bounds, {"model_name": model_name}
            )
            registry.register(made)
            return made

        self._queue_s = histogram(
            "request_queue_time_seconds",
            "Of a run, inside the worker before its first step; what waits in NATS is not in it.",
            REQUEST_S,
        )
        self._prefill_s = histogram(
            "request_prefill_time_seconds", "From its first step to its first token.", REQUEST_S
        )
        self._decode_s = histogram(
            "request_decode_time_seconds", "From its first token to its last.", REQUEST_S
        )
        self._inference_s = histogram(
            "request_inference_time_seconds", "From its first step to its last token.", REQUEST_S
        )
        self._token_s = histogram(
            "request_time_per_output_token_seconds",
            "Decode time of a run by its tokens behind the first.",
            TOKEN_S,
        )
        self._prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of a finished request.", TOKENS
        )
        self._generation_tokens = histogram(
            "request_generation_tokens", "Output tokens of a finished request.", TOKENS
        )
        self.step_tokens = histogram(
            "iteration_tokens", "Tokens that went through the model in a step.", STEP_TOKENS
        )

    def note_finish(self, held: HeldRequest) -> None:
        """It has made its last token, and says how that went."""
        assert held.finish is not None
        run = held.finish.run
        assert run is not None
        self._queue_s.observe(run.queue_s)
        self._prefill_s.observe(run.prefill_s)
        self._decode_s.observe(run.decode_s)
        self._inference_s.observe(run.prefill_s + run.decode_s)
        num_behind_first = len(held.tokens) - held.num_prefix - 1
        if num_behind_first > 0:
            self._token_s.observe(run.decode_s / num_behind_first)
        self._prompt_tokens.observe(held.request.reply.num_prompt_tokens)
        self._generation_tokens.observe(held.num_output_tokens)


class CounterMaker:
    """Makes counters in one registry, with a label for the model and maybe another."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name

    def counter(self, name: str, text: str) -> EventCounter:
        return self.counters(name, text).labels(self._model_name)

    def counters(self, name: str, text: str, *labels: str) -> EventCounter:
        """The model's name is the first of its labels."""
        counter = EventCounter(f"{METRICS_PREFIX}_{name}", text, ("model_name", *labels))
        self._registry.register(counter)
        return counter


class DiskMetrics:
    """Metrics of the disk behind the KV cache; zeros where there is none."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        make = CounterMaker(registry, model_name)
        counter = make.counter

        def by_reason(name: str, text: str, reasons: Sequence[str]) -> list[EventCounter]:
            metric = make.counters(name, text, "reason")
            return [metric.labels(model_name, reason) for reason in reasons]

        self.num_bytes = Gauge(
            f"{METRICS_PREFIX}_kv_disk_bytes",
            "Keys and values in --kv-disk-dir, of all workers that share it.",
            ["model_name"],
            registry=registry,
        ).labels(model_name)
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
            *by_reason(
                "kv_disk_rejected_pages",
                "Pages that were read there, and were not what was written, or of another engine.",
                REJECT_REASONS,
            ),
            *by_reason("kv_disk_lost_pages", "Pages that were not written there.", LOSS_REASONS),
            counter(
                "kv_transfer_hits", "Prompt tokens whose keys and values other workers have sent."
            ),
            counter("kv_transfer_received_bytes", "Keys and values that they have sent."),
            *by_reason(
                "kv_transfer_refused_pages",
                "Pages that they did not send, or that were not what was asked for: computed.",
                FETCH_REASONS,
            ),
        )


class PageServerMetrics:
    """Metrics of what this worker sends to others, counted by threads; zeros where it sends
    nothing.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._sent_bytes = Counter(
            f"{METRICS_PREFIX}_kv_transfer_sent_bytes",
            "Keys and values sent to other workers.",
            ["model_name"],
            registry=registry,
        ).labels(model_name)
        refused = Counter(
            f"{METRICS_PREFIX}_kv_transfer_refused_connections",
            "Connections that did not prove the key in time, are for other pages, or too many.",
            ["model_name", "reason"],
            registry=registry,
        )
        self._refused = {
            reason: refused.labels(model_name, reason) for reason in REFUSED_CONNECTIONS
        }

    def note_sent(self, num_bytes: int) -> None:
        self._sent_bytes.inc(num_bytes)

    def note_refused(self, reason: str) -> None:
        self._refused[reason].inc()


class WorkerMetrics:
    """vLLM's stems under our prefix, and what only a queue has."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self.registry = registry
        self.runs = RunMetrics(registry, model_name)
        self.disk = DiskMetrics(registry, model_name)
        self.pages = PageServerMetrics(registry, model_name)
        self.startup = StartupPhases()
        registry.register(self.startup)
        self._labels = {"model_name": model_name}
        make = CounterMaker(registry, model_name)
        counter = make.counter

        def gauge(name: str, text: str) -> Gauge:
            metric = Gauge(f"{METRICS_PREFIX}_{name}", text, ["model_name"], registry=registry)
            return metric.labels(model_name)

        self.num_running = gauge("num_requests_running", "Requests in the engine's batch.")
        self.num_waiting = gauge("num_requests_waiting", "Requests waiting inside the engine.")
        self.kv_cache_usage = gauge("kv_cache_usage_perc", "Share of KV slots in use, 0 to 1.")
        self.num_pinned_tokens = gauge(
            "prefix_cache_pinned_tokens", "Tokens of the prefix cache that requests asked to keep."
        )
        self.num_snapshots = gauge(
            "prefix_cache_states", "Recurrent states at page borders that the prefix cache holds."
        )
        self.num_snapshot_slots = gauge(
            "prefix_cache_state_slots", "Recurrent states at page borders that there is room for."
        )
        states = Gauge(
            f"{METRICS_PREFIX}_worker_state",
            "1 for the state that the worker is in.",
            ["model_name", "state"],
            registry=registry,
        )
        self._states = {state: states.labels(model_name, state.value) for state in WorkerState}
        self.last_step_age_s = gauge(
            "last_step_age_seconds", "Seconds since the last engine step while requests run."
        )
        self.generation_tokens = counter("generation_tokens", "Tokens given to the log.")
        self.prefix_cache_queries = counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self.prefix_cache_hits = counter(
            "prefix_cache_hits", "Prompt tokens that came from the prefix cache."
        )
        self.num_preemptions = counter("num_preemptions", "Requests retracted for want of pages.")
        self.num_drafted = counter(
            "spec_decode_num_draft_tokens", "Tokens guessed, by --speculate or a grammar."
        )
        self.num_accepted = counter(
            "spec_decode_num_accepted_tokens", "Guessed tokens that were right."
        )
        accepted_by_position = make.counters(
            "spec_decode_num_accepted_tokens_per_pos",
            "Guessed tokens that were right, by their place among a step's guesses: from 0.",
            "position",
        )
        self.accepted_by_position = [
            accepted_by_position.labels(model_name, str(position))
            for position in range(NUM_DRAFT_POSITIONS)
        ]
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests taken.")
        self.requests_taken = counter("requests_taken", "Requests claimed.")
        self.requests_resumed = counter("requests_resumed", "Requests taken over with tokens.")
        self.requests_released = counter("requests_released", "Requests handed over.")
        self.requests_fenced = counter("requests_fenced", "Requests lost to another worker.")
        self.requests_finished = counter("requests_finished", "Requests acknowledged.")
        self.quarantines = counter(
            "quarantines", "Requests run alone, since workers had died under them."
        )
        self.poison_ends = counter("poison_ends", "Requests given up, since workers died of them.")
        self.dead_discarded = counter(
            "dead_requests_discarded", "Given-up requests discarded, for want of room or for age."
        )
        self.redeliveries = counter("redeliveries", "Deliveries that were not the first.")
        self.frames_resent = counter("frames_resent", "Frames sent again for want of an ack.")
        self.offers_made = counter("offers_made", "Requests offered to the holder of a prefix.")
        self.offers_taken = counter("offers_taken", "Of which it took.")
        self.offers_refused = counter("offers_refused", "Of which it refused.")
        self.offers_unanswered = counter("offers_unanswered", "Of which nobody answered in time.")
        self.affinity_tokens = counter(
            "affinity_tokens", "Prompt tokens known here, and not to the workers that offered them."
        )
        self.decodes_moved = counter(
            "decodes_moved", "Requests that a worker which decodes took over behind their prompt."
        )
        self.decodes_kept = counter(
            "decodes_kept", "Times that none had room, so that this worker went on."
        )
        self.decodes_taken_back = counter(
            "decodes_taken_back", "Requests released to such a worker, which did not take them."
        )
        self.engine_restarts = counter("engine_restarts", "Engine processes that died.")
        self.packed_failures = counter(
            "packed_weights_failures",
            "Packed weights on disk that were damaged, or could not be kept.",
        )
        self.memory_shortages = counter(
            "gpu_memory_shortages", "Steps that did not fit into the GPU's memory at once."
        )
        self._success = make.counters(
            "request_success",
            "Requests that the engine has finished, by reason.",
            "finished_reason",
        )
        self._ended = make.counters(
            "requests_ended",
            "Requests that were ended while this worker had them: cancelled, late, given up.",
            "reason",
        )
        gpu_bytes = Gauge(
            f"{METRICS_PREFIX}_gpu_memory_bytes",
            "Memory of each GPU: in all, what the engine has, what nobody holds; 0 without one.",
            ["model_name", "kind"],
            registry=registry,
        )
        self._gpu_bytes = {kind: gpu_bytes.labels(model_name, kind) for kind in _GPU_BYTES}
        self._kernel_sets = Gauge(
            f"{METRICS_PREFIX}_kernel_set",
            "1 for the kernel set of the worker's C++; empty where it computes by other means.",
            ["model_name", "kernel_set"],
            registry=registry,
        )
        self._model_name = model_name
        self.set_kernel_set("")
        for reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._success.labels(model_name, reason.value)
        for reason in (FinishReason.CANCEL, FinishReason.DEADLINE, FinishReason.POISON):
            self._ended.labels(model_name, reason.value)

    def total(self, name: str) -> int:
        """What the counter of this name, without our prefix, has come to."""
        value = self.registry.get_sample_value(f"{METRICS_PREFIX}_{name}_total", self._labels)
        assert value is not None, f"there is no counter {name}"
        return int(value)

    def note_taken(self, held: HeldRequest, *, is_resumed: bool) -> None:
        """Its claim is stored, and it runs: with tokens of another worker, or from its prompt."""
        self.requests_taken.inc()
        self.prompt_tokens.inc(held.request.reply.num_prompt_tokens)
        if is_resumed:
            self.requests_resumed.inc()

    def note_finish(self, held: HeldRequest) -> None:
        """The engine has finished it, and the log is given its last token."""
        assert held.finish is not None
        self._success.labels(self._model_name, held.finish.reason.value).inc()
        self.runs.note_finish(held)

    def note_end(self, reason: FinishReason) -> None:
        """Somebody has ended a request that was here."""
        self._ended.labels(self._model_name, reason.value).inc()

    def set_kernel_set(self, name: str) -> None:
        self._kernel_sets.clear()
        self._kernel_sets.labels(self._model_name, name).set(1)

    def set_gpu(self, gpu: GpuCard | None) -> None:
        for kind, gauge in self._gpu_bytes.items():
            gauge.set(0 if gpu is None else getattr(gpu, _GPU_BYTES[kind]))

    def set_state(self, state: WorkerState) -> None:
        for each, gauge in self._states.items():
            gauge.set(each is state)


class EngineCounters:
    """What an engine counts from its start on, in counters that outlive it: adds what each load has
    more than the one before.
    """

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._counters = (
            metrics.prefix_cache_queries,
            metrics.prefix_cache_hits,
            metrics.num_preemptions,
            metrics.num_drafted,
            metrics.num_accepted,
            *metrics.accepted_by_position,
            *metrics.disk.counters,
        )
        self._counted = (0,) * len(self._counters)

    def update(self, load: EngineLoad) -> None:
        values = (
            load.num_prefix_queries,
            load.num_prefix_hits,
            load.num_preemptions,
            load.num_drafted,
            load.num_accepted,
            *load.accepted_by_position,
            *load.tier.counts,
        )
        if any(value < counted for value, counted in zip(values, self._counted, strict=True)):
            self._counted = (0,) * len(values)  # another engine, which begins with nothing
        for counter, value, counted in zip(self._counters, values, self._counted, strict=True):
            counter.inc(value - counted)
        self._counted = values


class WorkMeter:
    """What a worker has worked off since its start: by this a scaler knows what it is worth.

    Counts prompt tokens when their first output comes, output tokens when they are made.
    """

    def __init__(self) -> None:
        self._num_tokens = 0
        self._num_finished = 0
        self._num_finished_tokens = 0

    def done(self, metrics: WorkerMetrics, load: EngineLoad | None) -> WorkDone:
        """As of now, beside what others have counted."""
        return WorkDone(
            num_tokens=self._num_tokens,
            num_finished=self._num_finished,
            num_finished_tokens=self._num_finished_tokens,
            num_redelivered=int(metrics.redeliveries.value),
            num_generated=int(metrics.generation_tokens.value),
            num_released=int(metrics.requests_released.value),
            num_fenced=int(metrics.requests_fenced.value),
            num_prefix_queries=load.num_prefix_queries if load else 0,
            num_prefix_hits=load.num_prefix_hits if load else 0,
        )

    def note_tokens(self, num_tokens: int) -> None:
        """Counts how many have been prefilled, or made."""
        self._num_tokens += num_tokens

    def note_finish(self, held: HeldRequest) -> None:
        """It has made its last token."""
        assert held.finish is not None
        self._num_finished += 1
        num_prompt = held.request.reply.num_prompt_tokens - held.finish.num_cached_tokens
        self._num_finished_tokens += max(0, num_prompt) + held.num_output_tokens
