"""Whether traces are wanted: OpenTelemetry's variables, and our flag."""

from __future__ import annotations

import importlib.metadata
import socket
import time

import pytest

from shared.errors import ConfigError
from shared.telemetry.trace_export import check_traces, open_tracer, wanted_exporter
from shared.telemetry.tracing import NO_TRACER

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("is_asked", "environ", "exporter"),
    [
        (False, {}, "none"),
        (True, {}, "otlp"),
        (False, ENDPOINT, "otlp"),
        (False, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, "otlp"),
        (False, {"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        (False, {"OTEL_TRACES_EXPORTER": "console"}, "console"),
        (False, {"OTEL_SERVICE_NAME": "llm"}, "none"),
        (True, {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, "none"),
        (True, {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, "none"),
        (False, {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "otlp"),
    ],
)
def test_who_asks_for_traces(is_asked: bool, environ: dict[str, str], exporter: str) -> None:
    assert wanted_exporter(is_asked, environ) == exporter


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "'jaeger', must be one of otlp, console, none"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'grpc'.*http/protobuf.*4318"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "TRACES_PROTOCOL is 'grpc'"),
    ],
)
def test_what_cannot_be_done_is_refused(environ: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_traces(False, environ)


def test_traces_without_the_extra_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with (
        pytest.raises(ConfigError, match=r"opentelemetry-sdk.*pip install .*\[otel\]"),
        open_tracer(True, "worker", "w", {}),
    ):
        pass
    check_traces(False, {})


def test_without_traces_nothing_is_made() -> None:
    with open_tracer(False, "worker", "w", {}) as tracer:
        assert tracer is NO_TRACER


def test_a_collector_that_does_not_answer_delays_the_end_by_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, says nothing
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        with open_tracer(True, "worker", "w") as tracer:
            tracer.start("a span").end()
            ending_at = time.monotonic()
        assert time.monotonic() - ending_at < 8  # the SDK alone would wait for 10
