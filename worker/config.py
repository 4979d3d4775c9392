"""Configuration of a worker: the cluster, the engine, and how the two meet."""

# No `from __future__ import annotations` here: the fields' types are read at run time, by
# subclasses in other modules.

import dataclasses
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from shared.checkpoint.model_files import resolve_model
from shared.config import ClusterConfig
from shared.errors import ConfigError
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.scripted_config import ScriptedConfig
from worker.transfer.page_wire import Endpoint
from worker.weights.lora_flag import split_lora

_GROUP = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(ScriptedConfig, ClusterConfig):
    """Everything `python -m worker` is told."""

    nats_role: ClassVar[str] = "worker"
    help_group: ClassVar[str] = "Worker"

    model_name: str | None = None
    """Name under which the model is served; by default the folder's name or the hub id."""
    chat_template: str | None = None
    """File with the chat template, in Jinja, that takes the place of the model's own."""
    keep_listed: bool = False
    """The model can be asked for while no worker lives, from the first one on: something else
    starts workers for what waits in the queue."""
    start_gate: bool = False
    """Load, but use NATS only when standard input has ended: for who starts both together."""
    scripted: bool = False
    """No model: tokens made from a hash, at a given pace. For tests and benchmarks."""
    worker_id: str | None = None
    """Incarnation id, never reused; by default a random one."""
    lora: tuple[str, ...] = ()
    """NAME=PATH of a LoRA adapter, as PEFT stores it, that is served as a model of that name; more
    than one: give it again."""
    frame_window: int = 8
    """Unconfirmed frames a partition may have before new tokens wait and merge."""
    prefix_affinity: bool = True
    """Offer requests to the worker of the pool that has computed their prefix, and take such."""
    kv_transfer_bind: str | None = None
    """HOST:PORT where other workers fetch keys and values that are in kv_disk_dir, over TCP and not
    encrypted; port 0 is any. They find it by the worker's card, and its key over NATS."""
    node_group: str = "first"
    """Of nnodes hosts: those with one name are one worker; a second worker of the model has another
    name."""
    revision_grace_s: float = 30.0
    """How long a request whose weights no worker has any more waits for one that has them."""
    shutdown_timeout_s: float = 0.0
    """Time that running requests get to finish after SIGTERM; 0 hands them over at once."""
    hang_timeout_s: float | None = None
    """Time without a step after which the engine counts as hung, its requests go elsewhere, and the
    worker exits; by default 20 times max_step_s, or more where a step of one token takes longer."""
    drain_timeout_s: float = 1.0
    """How long a hand-over waits for the log to have the last tokens."""

    def check(self) -> None:
        """Raises ConfigError for a value that no worker can run with."""
        super().check()
        for text in self.lora:
            split_lora(text)
        if self.lora and not self.max_loras:
            raise ConfigError(f"{len(self.lora)} lora, and max_loras=0")
        if self.role != "both" and self.kv_disk_dir is None and not self.scripted:
            raise ConfigError(
                f"role={self.role} needs kv_disk_dir, a folder that workers of both roles share: "
                "their keys and values meet there"
            )
        if self.kv_transfer_bind is not None:
            Endpoint.parse(self.kv_transfer_bind)
            if self.kv_disk_dir is None:
                raise ConfigError(
                    f"kv_transfer_bind={self.kv_transfer_bind} needs kv_disk_dir, whose pages it "
                    "sends"
                )
        if _GROUP.fullmatch(self.node_group) is None:
            raise ConfigError(f"node_group {self.node_group!r} must match {_GROUP.pattern}")
        if self.hang_timeout_s is not None and self.hang_timeout_s < 2 * self.max_step_s:
            raise ConfigError(
                f"hang_timeout_s={self.hang_timeout_s:g} must be at least twice "
                f"max_step_s={self.max_step_s:g}: slow steps would count as hangs"
            )

    def engine_config(self, model_path: Path) -> EngineConfig:
        """The engine's share of it. Raises ConfigError when there is no such draft model, or no way
        to NATS from which others could reach it.
        """
        kind = ScriptedConfig if self.scripted else EngineConfig
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(kind)}
        if self.draft_model is not None:
            values["draft_model"] = str(resolve_model(self.draft_model))
        if self.nnodes > 1 and not self.node_address:
            values["node_address"] = address_towards(self.nats_url)
        return kind(**values | {"model_path": str(model_path)})


def address_towards(nats_url: str) -> str:
    """The address of this host from which it reaches NATS: nothing is sent. Raises ConfigError."""
    url = urlsplit(nats_url.split(",")[0])
    try:
        found = socket.getaddrinfo(url.hostname, url.port or 4222, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(target)
            address: str = sock.getsockname()[0]
            return address
    except OSError as exc:
        raise ConfigError(
            f"node_address is needed: no way to {nats_url} is found, by whose address others could "
            f"reach this host: {exc}"
        ) from exc
