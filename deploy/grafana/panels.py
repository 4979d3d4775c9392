"""What the dashboard shows: rows of panels, each with its queries.

`$M` stands for the selectors of metrics with a model, `$I` for those of all others.
"""

from __future__ import annotations

from dataclasses import dataclass

_QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Query:
    """One line, or one a label."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A diagram over time; `unit` is Grafana's word."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


def _rate(metric: str, by: str = "", of: str = "$M") -> str:
    """Per second, summed over all instances."""
    return f"sum{_by(by)} (rate({metric}{{{of}}}[$__rate_interval]))"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""


def _quantiles(metric: str, of: str = "$M") -> tuple[Query, ...]:
    buckets = _rate(f"{metric}_bucket", "le", of)
    return tuple(
        Query(f"histogram_quantile({quantile}, {buckets})", f"p{quantile * 100:g}")
        for quantile in _QUANTILES
    )


def _one(expr: str, legend: str) -> tuple[Query, ...]:
    return (Query(expr, legend),)


def _of_scaler(name: str, legend: str) -> Query:
    """Scalers of one pool see the same."""
    expr = f"max by (model_name, role) (jetflock_autoscaler_{name}{{$M}})"
    return Query(expr, f"{legend} ({{{{role}}}})")


_SERVICE = Row(
    "Service",
    (
        Panel(
            "Time to first token",
            "s",
            _quantiles("jetflock_frontend_time_to_first_token_seconds"),
            "From the arrival of a request at a frontend to its first text, queue included.",
        ),
        Panel(
            "Between two pieces of text",
            "s",
            _quantiles("jetflock_frontend_inter_token_latency_seconds", "$I"),
        ),
        Panel("Whole request", "s", _quantiles("jetflock_frontend_e2e_request_latency_seconds")),
        Panel(
            "Requests a second, by status",
            "reqps",
            _one(_rate("jetflock_frontend_requests_total", "status", "$I"), "{{status}}"),
        ),
        Panel(
            "Answers of 5xx and 429",
            "percentunit",
            (
                Query(
                    'sum (rate(jetflock_frontend_requests_total{$I, status=~"5.."}'
                    "[$__rate_interval])) / " + _rate("jetflock_frontend_requests_total", of="$I"),
                    "5xx",
                ),
                Query(
                    'sum (rate(jetflock_frontend_requests_total{$I, status="429"}'
                    "[$__rate_interval])) / " + _rate("jetflock_frontend_requests_total", of="$I"),
                    "429",
                ),
            ),
        ),
        Panel(
            "Refused by limits",
            "reqps",
            _one(
                _rate("jetflock_frontend_requests_refused_total", "reason, job_class", "$I"),
                "{{reason}} {{job_class}}",
            ),
        ),
        Panel(
            "Tokens a second",
            "short",
            (
                Query(_rate("jetflock_frontend_prompt_tokens_total"), "prompt"),
                Query(_rate("jetflock_frontend_generation_tokens_total"), "output"),
            ),
        ),
        Panel(
            "How requests end",
            "reqps",
            (
                Query(
                    _rate("jetflock_frontend_request_success_total", "finished_reason"),
                    "{{finished_reason}}",
                ),
                Query(
                    _rate("jetflock_frontend_requests_ended_total", "reason", "$I"),
                    "ended here: {{reason}}",
                ),
            ),
        ),
        Panel(
            "Open answers",
            "short",
            _one("sum (jetflock_frontend_requests_in_flight{$I})", "in flight"),
        ),
    ),
)

_QUEUE = Row(
    "Queue",
    (
        Panel(
            "Depth",
            "short",
            (
                Query(
                    "max by (model_name, job_class) (jetflock_frontend_queue_waiting_requests{$M})",
                    "{{model_name}} {{job_class}}: waiting",
                ),
                Query(
                    "max by (model_name, job_class) (jetflock_frontend_queue_taken_requests{$M})",
                    "{{model_name}} {{job_class}}: taken",
                ),
            ),
            "All frontends see the same queue.",
        ),
        Panel(
            "Oldest wait",
            "s",
            _one(
                "max by (model_name, job_class) (jetflock_frontend_queue_oldest_wait_seconds{$M})",
                "{{model_name}} {{job_class}}",
            ),
        ),
        Panel(
            "Accepted and drained",
            "reqps",
            (
                Query(_rate("jetflock_requests_taken_total"), "taken"),
                Query(_rate("jetflock_requests_finished_total"), "finished"),
            ),
        ),
        Panel(
            "How full the streams are",
            "percentunit",
            _one("max by (stream) (jetflock_frontend_stream_usage_ratio{$I})", "{{stream}}"),
        ),
        Panel(
            "Lines of batches",
            "short",
            (
                Query(
                    _rate("jetflock_frontend_batch_lines_total", "result", "$I"),
                    "{{result}} a second",
                ),
                Query("sum (jetflock_frontend_batches_live{$I})", "batches"),
            ),
        ),
    ),
)

_WORKERS = Row(
    "Workers",
    (
        Panel(
            "Workers by state",
            "short",
            _one(
                "max by (model_name, state) (jetflock_frontend_workers{$M})",
                "{{model_name}}: {{state}}",
            ),
            "As their heartbeats tell: also of those that nobody can scrape.",
        ),
        Panel(
            "Requests inside",
            "short",
            (
                Query("sum by (instance) (jetflock_num_requests_running{$M})", "{{instance}} run"),
                Query("sum by (instance) (jetflock_num_requests_waiting{$M})", "{{instance}} wait"),
            ),
        ),
        Panel(
            "KV cache",
            "percentunit",
            _one("max by (instance) (jetflock_kv_cache_usage_perc{$M})", "{{instance}}"),
        ),
        Panel(
            "Prefix cache hits",
            "percentunit",
            _one(
                f"{_rate('jetflock_prefix_cache_hits_total', 'instance')} / "
                f"{_rate('jetflock_prefix_cache_queries_total', 'instance')}",
                "{{instance}}",
            ),
        ),
        Panel(
            "Tokens a second",
            "short",
            _one(_rate("jetflock_generation_tokens_total", "instance"), "{{instance}}"),
        ),
        Panel("Tokens a step", "short", _quantiles("jetflock_iteration_tokens")),
        Panel("Wait inside the worker", "s", _quantiles("jetflock_request_queue_time_seconds")),
        Panel("Prefill", "s", _quantiles("jetflock_request_prefill_time_seconds")),
        Panel(
            "Time per output token",
            "s",
            _quantiles("jetflock_request_time_per_output_token_seconds"),
        ),
        Panel(
            "Preemptions",
            "short",
            _one(_rate("jetflock_num_preemptions_total", "instance"), "{{instance}}"),
        ),
        Panel(
            "Age of the last step",
            "s",
            _one("max by (instance) (jetflock_last_step_age_seconds{$M})", "{{instance}}"),
            "Above 0 only while the engine owes a step.",
        ),
        Panel(
            "GPU memory",
            "bytes",
            _one(
                'max by (instance, kind) (jetflock_gpu_memory_bytes{$M, kind!="total"}) > 0',
                "{{instance}}: {{kind}}",
            ),
            "Of each GPU: what its engine keeps, and what is free.",
        ),
        Panel(
            "Steps short of GPU memory",
            "short",
            _one(_rate("jetflock_gpu_memory_shortages_total", "instance"), "{{instance}}"),
            "They were computed in pieces: another program takes the memory.",
        ),
        Panel(
            "Speculation: accepted",
            "percentunit",
            _one(
                f"{_rate('jetflock_spec_decode_num_accepted_tokens_total')} / "
                f"{_rate('jetflock_spec_decode_num_draft_tokens_total')}",
                "accepted",
            ),
        ),
    ),
)

_LOG = Row(
    "Token log and detokenizers",
    (
        Panel(
            "Log messages still to be read",
            "short",
            _one("max by (instance) (jetflock_detok_lag{$I})", "{{instance}}"),
        ),
        Panel(
            "Partitions",
            "short",
            (
                Query("sum by (instance) (jetflock_detok_partitions{$I})", "{{instance}}"),
                Query("sum (jetflock_detok_catching_up{$I})", "being read again"),
            ),
        ),
        Panel(
            "Tokens a second",
            "short",
            _one(_rate("jetflock_detok_tokens_total", "instance", "$I"), "{{instance}}"),
        ),
        Panel(
            "Fenced and missing entries",
            "short",
            (
                Query(_rate("jetflock_detok_fenced_entries_total", of="$I"), "of a past epoch"),
                Query(_rate("jetflock_detok_holes_total", of="$I"), "ahead of what precedes"),
            ),
        ),
        Panel(
            "Gaps and replays",
            "short",
            (
                Query(_rate("jetflock_frontend_reply_gaps_total", of="$I"), "gaps"),
                Query(_rate("jetflock_frontend_replays_total", "status", "$I"), "{{status}}"),
            ),
            "Text that was lost on its way to a frontend, and asked for again.",
        ),
        Panel(
            "Resumed streams",
            "short",
            _one(_rate("jetflock_frontend_resumes_total", "result", "$I"), "{{result}}"),
        ),
    ),
)

_FAULTS = Row(
    "Faults",
    (
        Panel(
            "Redelivered and handed over",
            "short",
            (
                Query(_rate("jetflock_redeliveries_total"), "delivered again"),
                Query(_rate("jetflock_requests_released_total"), "handed over"),
                Query(_rate("jetflock_requests_resumed_total"), "taken over with tokens"),
                Query(_rate("jetflock_requests_fenced_total"), "lost to another worker"),
                Query(_rate("jetflock_detok_naks_total", of="$I"), "given back for the dead"),
            ),
        ),
        Panel(
            "Ended while a worker had them",
            "short",
            _one(_rate("jetflock_requests_ended_total", "reason"), "{{reason}}"),
        ),
        Panel(
            "Poison",
            "short",
            (
                Query(_rate("jetflock_quarantines_total"), "run alone"),
                Query(_rate("jetflock_poison_ends_total"), "given up"),
                Query("max (jetflock_frontend_dead_requests{$I})", "kept"),
            ),
        ),
        Panel(
            "Engine restarts",
            "short",
            _one(_rate("jetflock_engine_restarts_total", "instance"), "{{instance}}"),
        ),
        Panel(
            "Messages that could not be read",
            "short",
            _one(
                _rate("jetflock_malformed_messages_total", "subject, kind", "$I"),
                "{{subject}}: {{kind}}",
            ),
        ),
        Panel(
            "NATS",
            "short",
            (
                Query("sum (jetflock_nats_connected{$I})", "connected"),
                Query(_rate("jetflock_nats_reconnects_total", "instance", "$I"), "{{instance}}"),
            ),
        ),
        Panel("NATS round trip", "s", _quantiles("jetflock_nats_round_trip_seconds", "$I")),
    ),
)

_MACHINES = Row(
    "Machines",
    (
        Panel(
            "CPU",
            "short",
            (
                Query(_rate("process_cpu_seconds_total", "instance", "$I"), "{{instance}}"),
                Query(
                    _rate("jetflock_engine_process_cpu_seconds_total", "instance", "$I"),
                    "{{instance}} engine",
                ),
            ),
            "Cores.",
        ),
        Panel(
            "Memory",
            "bytes",
            (
                Query("sum by (instance) (process_resident_memory_bytes{$I})", "{{instance}}"),
                Query(
                    "sum by (instance) (jetflock_engine_process_resident_memory_bytes{$I})",
                    "{{instance}} engine",
                ),
            ),
        ),
        Panel(
            "Event loop: kept waiting by its own work",
            "s",
            _quantiles("jetflock_event_loop_stall_seconds", "$I"),
        ),
        Panel(
            "Event loop: late for any reason",
            "s",
            _quantiles("jetflock_event_loop_lag_seconds", "$I"),
        ),
        Panel(
            "Start, by phase",
            "s",
            _one(
                "max by (instance, phase) (jetflock_startup_phase_seconds{$I})",
                "{{instance}} {{phase}}",
            ),
        ),
        Panel(
            "Builds",
            "short",
            _one("count by (version, role) (jetflock_build_info{$I})", "{{role}} {{version}}"),
        ),
    ),
)

_AUTOSCALER = Row(
    "Autoscaler",
    (
        Panel(
            "Workers",
            "short",
            (
                _of_scaler("wanted_workers", "wanted"),
                _of_scaler("needed_workers", "needed"),
                _of_scaler("ready_workers", "ready"),
                _of_scaler("starting_workers", "starting"),
            ),
        ),
        Panel(
            "What it sees",
            "short",
            (
                _of_scaler("requests_waiting", "waiting"),
                _of_scaler("oldest_wait_seconds", "oldest wait, s"),
            ),
        ),
        Panel(
            "Changes",
            "short",
            _one(
                "sum by (role, reason) (increase(jetflock_autoscaler_changes_total{$M}"
                "[$__rate_interval]))",
                "{{reason}} ({{role}})",
            ),
        ),
    ),
)

ROWS = (_SERVICE, _QUEUE, _WORKERS, _LOG, _FAULTS, _MACHINES, _AUTOSCALER)
