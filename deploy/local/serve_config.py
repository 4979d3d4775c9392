"""What `jetflock serve` is told: the flags of every role, and a few of its own."""

# No `from __future__ import annotations` here: the fields' types are read at run time.

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from cyclopts import Parameter

import deploy.demo_model
from deploy.local.data_folder import default_data_dir
from deploy.local.http_probe import http_url
from deploy.local.ports import free_port
from deploy.scaling.autoscaler import ScalePolicy
from deploy.scaling.scale_config import ScaleConfig, WorkerRange
from detok.config import DetokConfig
from frontend.config import FrontendConfig
from shared.checkpoint.model_files import served_name
from shared.errors import ConfigError
from shared.protocol.role_cards import WorkerRole
from worker.config import WorkerConfig

DEMO_MODEL_NAME = "jetflock-demo"
_LEAVE_MARGIN_S = 5.0
_NOT_A_FLAG = Parameter(parse=False, show=False)


def demo_model() -> str:
    """The checkpoint that comes along."""
    return str(Path(deploy.demo_model.__file__).parent / "checkpoint")


@dataclass(frozen=True, kw_only=True)
class ServeConfig(FrontendConfig, DetokConfig, WorkerConfig, ScaleConfig):
    """All roles' flags are flags of serve too: a role gets what differs from its default."""

    nats_role: ClassVar[str] = "admin"  # of the supervisor itself, not of what it starts
    help_group: ClassVar[str] = "Serve"

    nats_url: str = ""
    """NATS servers to use, comma separated; by default serve starts one of its own."""
    nats_server: Path | None = None
    """The nats-server to run, 2.11 or newer; by default one on PATH, else the packaged one, whose
    SHA-256 must be a known one."""
    nats_port: int = 0
    """Port of the own nats-server, on the loopback interface; by default a free one."""
    data_dir: Path | None = None
    """Queue and token log of the own nats-server; default ~/.local/state/jetflock/port-PORT."""
    workers: int | str = 1
    """Worker processes, or a range as 0..4."""
    decode_workers: int | str = 0
    """Of these: as many have --role decode, and the others --role prefill; 0: all do both."""
    detok_process: bool = False
    """Run the detokenizer in a process of its own: more CPU a token, on one more core."""
    shutdown_timeout_s: float = 1.0
    """Time that running requests and their streams get to finish at Ctrl-C."""
    admin_port: int = 0
    """Port of the admin plane's HTTP, `jetflock admin serve`; 0 is off."""
    admin_host: str = "127.0.0.1"
    """Its address; without a key only a loopback one."""
    admin_key: str | None = None
    """The key that it asks for: with one, the page's Cluster tab can give orders."""
    admin_key_file: Path | None = None
    """File that holds the key."""
    admin_page_origin: tuple[str, ...] = ()
    """Origins of pages that may give orders with the key; by default that of this frontend's."""
    verbose: bool = False
    """Tell at the end of the start what it spent its time on."""
    start_timeout_s: float = 1800.0
    """Time until everything is ready, loading and downloading included."""

    # Made here for each start of a role, or given as MODEL.
    frontend_id: Annotated[str | None, _NOT_A_FLAG] = None
    detok_id: Annotated[str | None, _NOT_A_FLAG] = None
    worker_id: Annotated[str | None, _NOT_A_FLAG] = None
    model_path: Annotated[str, _NOT_A_FLAG] = ""
    start_gate: Annotated[bool, _NOT_A_FLAG] = False

    @property
    def has_own_nats(self) -> bool:
        return not self.nats_url

    @property
    def worker_range(self) -> WorkerRange:
        """Raises ConfigError."""
        return WorkerRange.parse(self.workers)

    @property
    def ranges(self) -> dict[WorkerRole, WorkerRange]:
        """How many workers there are of each role. Raises ConfigError."""
        workers = self.worker_range
        if str(self.decode_workers) == "0":
            return {self.role: workers}
        decode = WorkerRange.parse(self.decode_workers, "--decode-workers")
        least, most = workers.least - decode.least, workers.most - decode.most
        if not 0 <= least <= most or most < 1:
            raise ConfigError(
                f"decode_workers={self.decode_workers} of workers={self.workers} leaves {least} to "
                f"{most} that compute prompts, must be from few to many, and 1 or more"
            )
        return {"decode": decode, "prefill": WorkerRange(least, most)}

    def scale_policies(self) -> dict[WorkerRole, ScalePolicy]:
        """Raises ConfigError."""
        return {role: self.scale_policy(workers) for role, workers in self.ranges.items()}

    @property
    def leave_timeout_s(self) -> float:
        """What a worker may take to finish and hand over before it is killed."""
        return self.shutdown_timeout_s + self.hand_over_timeout_s + _LEAVE_MARGIN_S

    @property
    def hand_over_timeout_s(self) -> float:
        """What a worker may take to give back what did not finish: it has two tries."""
        return 2 * self.drain_timeout_s

    @property
    def takes_orders_from_page(self) -> bool:
        """Whether its page may ask its admin plane, on behalf of whoever has the key."""
        return bool(self.admin_port and (self.admin_key or self.admin_key_file))

    @property
    def own_data_dir(self) -> Path:
        return (self.data_dir or default_data_dir(self.port)).expanduser().absolute()

    def completed(self, model: str) -> "ServeConfig":
        """The same with the defaults filled in that depend on other values. Raises ConfigError."""
        workers = self.worker_range
        if self.node_rank:
            raise ConfigError(
                f"node_rank={self.node_rank} is for `jetflock worker` on the other hosts; serve is "
                "node 0"
            )
        if self.nnodes > 1 and workers.most > 1:
            raise ConfigError(
                f"nnodes={self.nnodes} is one worker on several hosts: leave "
                f"workers={self.workers} out"
            )
        self._check_roles()
        self.check_parsers()
        self.scale_policies()
        port = self.port or free_port()
        num_cores = len(os.sched_getaffinity(0))
        return replace(
            self,
            port=port,
            nats_port=self.nats_port or free_port(),
            model_name=self.model_name or _model_name(model),
            admin_url=self.admin_url or self._own_admin_url,
            admin_page_origin=self.admin_page_origin or self._own_page_origins(port),
            num_threads=self.num_threads
            or (max(1, num_cores // workers.most) if workers.most > 1 else None),
        )

    def _check_roles(self) -> None:
        """Raises ConfigError."""
        if len(self.ranges) == 1:
            return
        told = f"decode_workers={self.decode_workers}"
        if self.role != "both":
            raise ConfigError(f"{told} gives each worker its role: leave role={self.role} out")
        if self.kv_disk_dir is None and not self.scripted:
            raise ConfigError(f"{told} needs kv_disk_dir, where keys and values are handed over")

    @property
    def _own_admin_url(self) -> str:
        if not self.takes_orders_from_page:
            return ""
        return http_url(self.admin_host, self.admin_port)

    def _own_page_origins(self, port: int) -> tuple[str, ...]:
        """A browser takes `localhost` and 127.0.0.1 for two."""
        if not self.takes_orders_from_page:
            return ()
        origins = (http_url(self.host, port), http_url("localhost", port))
        return tuple(dict.fromkeys(origins))


def _model_name(model: str) -> str:
    return DEMO_MODEL_NAME if model == demo_model() else served_name(model)
