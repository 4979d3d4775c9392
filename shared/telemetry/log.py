"""Structured logs: JSON when piped, coloured when a person looks on."""

# No `from __future__ import annotations` here: the types of LogConfig are read at run time, by
# subclasses in other modules.

import json
import logging
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TextIO

import msgspec

from shared.telemetry.without_rich import without_rich

with without_rich():  # it is for tracebacks in frames, which ours are not
    import structlog

LogFormat = Literal["auto", "json", "pretty"]


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What a process logs, and in which form."""

    help_group: ClassVar[str] = "NATS, limits and logs"

    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: LogFormat = "auto"
    """json, pretty, or auto: pretty on a terminal."""


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose events are snake_case names with key-value pairs."""
    return structlog.stdlib.get_logger(name)


def setup_logging(
    role: str, level: str = "info", log_format: LogFormat = "auto", *, colours: bool = True
) -> None:
    """Called once, by a program's `__main__`. Logs go to stderr.

    Our own lines go there at once, since a frontend writes one for every request; those of
    libraries take the way of the standard library, to the same form.
    """
    pretty = log_format == "pretty" or (log_format == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=colours and not os.environ.get("NO_COLOR"))
        if pretty
        else _as_json
    )
    shared_processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared_processors,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("nats").setLevel(logging.WARNING)
    lines = LineLogger(sys.stderr)
    structlog.configure(
        processors=[*shared_processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(root.level),
        logger_factory=lambda *_: lines,
    )
    structlog.contextvars.bind_contextvars(role=role)


def setup_command_logging(name: str) -> None:
    """Sets up a command whose output is read or piped: it logs warnings, unless it logs already."""
    if not structlog.is_configured():
        setup_logging(name, "warning", "pretty", colours=sys.stderr.isatty())


class LineLogger:
    """Writes finished lines. One that cannot be written is lost, and harms nobody."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a full disk, a reader that has gone, a closed stream
                pass

    debug = info = warning = error = critical = exception = msg


def _as_json(_: Any, __: str, event: structlog.typing.EventDict) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=repr).decode()
    except (TypeError, ValueError, OverflowError):  # half a surrogate pair, a number of 65 bits
        return json.dumps(event, default=repr)
