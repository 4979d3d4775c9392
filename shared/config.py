"""Configuration that all roles share.

A role's configuration is a frozen dataclass that includes `ClusterConfig`. A field
`ack_wait_s` is the flag `--ack-wait-s`, the variable `JETFLOCK_ACK_WAIT_S` and the YAML key
`ack-wait-s` (`shared/cli/program.py` reads them). Unknown flags and keys are errors. A secret can
be given as a file.
"""

# No `from __future__ import annotations` here: the fields' types are read at run time, by
# subclasses in other modules.

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from cyclopts import Parameter

from shared.errors import ConfigError
from shared.nats_login import NatsLogin
from shared.telemetry.log import LogConfig

ENV_PREFIX = "JETFLOCK_"
MAX_PORT = 65_535
ERASER = "eraser"  # to NATS, the user that takes away for a role that may not


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(LogConfig):
    """Where NATS is, and what the streams are made with."""

    help_group: ClassVar[str] = "NATS, limits and logs"
    nats_role: ClassVar[str] = "admin"
    """What a process with this configuration is to NATS: who hears which answers."""

    nats_url: str = "nats://127.0.0.1:4222"
    """NATS servers, comma separated."""
    nats_user: str | None = None
    """User name."""
    nats_password: str | None = None
    """Password."""
    nats_password_file: Path | None = None
    """File that holds the password."""
    nats_nkey_file: Path | None = None
    """File that holds the nkey seed."""
    nats_creds: Path | None = None
    """Credentials file (JWT and seed)."""
    nats_tls_ca: Path | None = None
    """CA certificate; switches TLS on."""
    nats_tls_cert: Path | None = None
    """Client certificate."""
    nats_tls_key: Path | None = None
    """Key of the client certificate."""
    nats_js_domain: str | None = None
    """JetStream domain that holds the streams; every role of a service names the same."""
    nats_connect_timeout_s: float = 15.0
    """Time to find a NATS server, and a leader among several, at the start; a lost connection is
    sought for ever."""
    prefix: str = "jf"
    """First token of every subject, stream and bucket name."""
    num_partitions: int | None = None
    """Partitions of the token log; fixed when the streams are made (then 4, by serve 1)."""
    replicas: int = 1
    """Copies of each stream in a NATS cluster."""
    queue_max_msgs: int = 10_000
    """Accepted requests that may wait or run; beyond it clients get 429."""
    queue_max_bytes: int = 1 << 30
    """Bytes of the same."""
    log_max_bytes: int = 8 << 30
    """Bytes of the token log; keep it well below the volume."""
    results_max_bytes: int = 1 << 30
    """Bytes of finished results, each kept for the resume window."""
    files_max_bytes: int = 1 << 30
    """Bytes of uploaded files and batch outputs; what running batches have done may be as much."""
    objects_max_bytes: int = 1 << 30
    """Bytes of tokenizers, LoRA adapters, and prompts of queued or dead requests that are above
    256 KiB or have images; at four fifths of it no new such prompt is taken."""
    keys_max_bytes: int = 256 << 20
    """Bytes of each of four buckets that clients make grow: idempotency keys, readers of requests,
    records of files, records of batches."""
    files_ttl_s: float = 30 * 86_400.0
    """How long files and batches are kept."""
    max_deadline_s: float = 3600.0
    """Longest time a request may wait and run."""
    resume_window_s: float = 600.0
    """How long a finished result can be fetched and a finished stream resumed."""
    response_ttl_s: float = 86_400.0
    """How long a response of /v1/responses is kept, from its request on; its result as long, from
    its end on."""
    response_store_bytes: int = 1 << 30
    """Bytes of all kept responses; at nine tenths of it no new one is kept."""
    bills_ttl_s: float = 0.0
    """How long the bill of each request is kept after its end; 0: bills are with the results alone.
    When their stream is there already, they are kept as long as it says."""
    bills_max_bytes: int = 1 << 30
    """Bytes of bills; beyond it the oldest are discarded."""
    dead_max_bytes: int = 128 << 20
    """Bytes of requests that were given up; beyond it the oldest are discarded."""
    dead_ttl_s: float = 30 * 86_400.0
    """How long requests that were given up are kept."""
    ack_wait_s: float = 8.0
    """Silence after which the server gives a worker's request to another."""
    otel: bool = False
    """Send traces by OTLP, also where no OTEL_* variable asks for it."""
    metrics_port: int = 0
    """Port of /metrics, /health/live and /health/ready for roles without an HTTP server of their
    own; 0 is off."""
    metrics_host: str = "127.0.0.1"
    """Its address; whoever reaches it may read the metrics, unless there is a key."""
    metrics_key_file: Path | None = None
    """File with the key that /metrics there asks for, as a bearer token."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which an HTTP server without keys may be called, beside those of this machine and,
    where it listens to others, IP addresses and names of inner networks; '*' for any."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a number that is none, or below 0, or no port."""
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            if not isinstance(value, int | float):
                continue
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} is {value}, must be a number from 0 on")
            if name.endswith("port") and value > MAX_PORT:
                raise ConfigError(f"{name} is {value}, must be at most {MAX_PORT}")

    @property
    def token_retention_s(self) -> float:
        """How long the token log keeps a record: deadline (queue and run) + resume window."""
        return self.max_deadline_s + self.resume_window_s + 60.0

    def login(self) -> NatsLogin:
        """Says as whom to connect."""
        return NatsLogin(
            self.nats_user,
            self.nats_password,
            self.nats_password_file,
            self.nats_nkey_file,
            self.nats_creds,
        )

    def eraser_login(self) -> NatsLogin | None:
        """Says as whom to purge, delete, and write objects; None: as for all else."""
        return None


# `Annotated[SomeConfig, FLAT]` spreads a dataclass over the command line.
FLAT = Parameter(name="*")
