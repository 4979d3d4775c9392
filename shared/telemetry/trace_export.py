"""Whether traces are wanted, and where they go: OpenTelemetry's own variables say so."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator, Mapping

from shared.errors import ConfigError
from shared.machine.installation import install_command, own_version
from shared.telemetry.tracing import NO_TRACER, Tracer

_EXPORTERS = ("otlp", "console", "none")
_PROTOCOL = "http/protobuf"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def wanted_exporter(is_asked: bool, environ: Mapping[str, str]) -> str:
    """otlp, console, or none. `is_asked`: by our own flag. Raises ConfigError."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "none"
    named = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if named and named not in _EXPORTERS:
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER is {named!r}, must be one of {', '.join(_EXPORTERS)}"
        )
    if not named:
        is_asked = is_asked or any(environ.get(name) for name in _ENDPOINTS)
    exporter = named or ("otlp" if is_asked else "none")
    if exporter == "otlp":
        _check_protocol(environ)
    return exporter


def _check_protocol(environ: Mapping[str, str]) -> None:
    for name in _PROTOCOLS:
        value = environ.get(name, "").strip().lower()
        if value and value != _PROTOCOL:
            raise ConfigError(
                f"{name} is {value!r}: jetflock sends traces by {_PROTOCOL}, which collectors "
                "take on port 4318"
            )
        if value:
            return


def check_traces(is_asked: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError when traces are wanted, and cannot be made."""
    if wanted_exporter(is_asked, environ) != "none":
        _require_sdk()


@contextlib.contextmanager
def open_tracer(
    is_asked: bool, role: str, instance_id: str, environ: Mapping[str, str] = os.environ
) -> Iterator[Tracer]:
    """The tracer of a role; what it has is sent at the end. Raises ConfigError."""
    exporter = wanted_exporter(is_asked, environ)
    tracer = NO_TRACER if exporter == "none" else _otel_tracer(exporter, role, instance_id)
    try:
        yield tracer
    finally:
        tracer.close()


def _require_sdk() -> None:
    try:
        importlib.metadata.version("opentelemetry-sdk")
        importlib.metadata.version("opentelemetry-exporter-otlp-proto-http")
    except importlib.metadata.PackageNotFoundError as exc:
        raise ConfigError(
            f"traces are asked for, by --otel or an OTEL_* variable, and {exc.name} is not "
            f"installed: {install_command('otel')}, or set OTEL_TRACES_EXPORTER=none"
        ) from exc


def _otel_tracer(exporter: str, role: str, instance_id: str) -> Tracer:
    _require_sdk()
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

    from shared.telemetry.otel_tracer import OtelTracer

    sink: SpanExporter
    if exporter == "console":
        import sys

        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        sink = ConsoleSpanExporter(out=sys.stderr)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        sink = OTLPSpanExporter()
    ours = {
        "service.name": f"jetflock-{role}",
        "service.version": own_version(),
        "service.instance.id": instance_id,
        "jetflock.role": role,
    }
    # Behind ours, so that the variables win.
    resource = Resource.create(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(sink))
    return OtelTracer(provider)
