"""What `jetflock doctor` is told."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shared.config import ClusterConfig


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(ClusterConfig):
    """Flags of `jetflock doctor`."""

    nats_url: str = ""
    """NATS servers, comma separated; by default those of the jetflock serve that runs here, if one
    does."""
    nats_connect_timeout_s: float = 3.0
    """Time that a NATS server may take to answer."""
    host: str = "127.0.0.1"
    """Address that the service listens on, or will."""
    port: int = 8000
    """Port of the service."""
    data_dir: Path | None = None
    """Folder of jetflock serve; default ~/.local/state/jetflock/port-PORT."""
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print findings as JSON."""
