"""`jetflock setup`: makes what a deployment must find before its roles and its scaler start."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Annotated

from shared.admin.stream_changes import adopt_restored, change_replicas, close_rollups
from shared.broker.jetstream import JetStream
from shared.broker.settling import once_settled
from shared.catalog.model_catalog import ModelCatalog
from shared.checkpoint.formats.served_weights import check_served_weights
from shared.checkpoint.model_files import ModelFiles, resolve_model, served_name, weight_files
from shared.checkpoint.model_options import ModelOptions
from shared.checkpoint.stored_format import ActivationsName, KVDTypeName, MadeFormat
from shared.cli.program import Program
from shared.cluster import Cluster, open_cluster
from shared.config import FLAT, ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.nats_client.connection import open_connection
from shared.storage.byte_budget import ByteBudget
from shared.storage.streams import ensure_consumers
from shared.subjects import Subjects, pool_slug
from shared.telemetry.log import get_logger, setup_logging

_NAME = "jetflock setup"
_SUMMARY = """\
Make the streams, and the consumers of a model's pool; with MODEL its card and tokenizer, too.

Run it before a scaler, and again at will; `jetflock models forget` undoes it. It prints JSON."""

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class SetupConfig(ClusterConfig):
    """Flags of `jetflock setup`."""

    model_name: str | None = None
    """Name under which the model is served; by default the folder's name or the hub id."""
    max_context_len: int | None = None
    """As the workers are told it: a stretched context makes another revision."""
    quantization: MadeFormat | None = None
    """As the workers are told it: it makes another revision, too."""
    kv_dtype: KVDTypeName = "auto"
    """The same."""
    cpu_activations: ActivationsName = "auto"
    """The same."""
    chat_template: str | None = None
    """As the workers are told it: it is stored with the tokenizer."""
    logits_processors: str | None = None
    """As the workers are told it: it makes another revision."""
    expect_consumers: tuple[str, ...] = ()
    """Refuse unless the pool's consumers have exactly these names: a scaler was told them."""
    change_replicas: bool = False
    """Give streams that are there as many copies as --replicas says, while they are in use."""
    change_timeout_s: float = 600.0
    """Time in which all copies must be complete."""
    after_restore: bool = False
    """Take streams that were restored from a backup, all of one moment and with no role running."""
    dry_run: bool = False
    """Only print the names, without a broker."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a scaler has to be told."""

    model: str
    pool: str
    stream: str
    consumers: list[str]

    @classmethod
    def of(cls, subjects: Subjects, model_name: str) -> "Names":
        pool = pool_slug(model_name)
        return cls(model_name, pool, subjects.requests_stream, subjects.consumers(pool))

    def check(self, expected: tuple[str, ...]) -> None:
        """Raises ConfigError when something else was expected."""
        if expected and set(expected) != set(self.consumers):
            raise ConfigError(
                f"expect_consumers is {', '.join(expected)}, but this version reads "
                f"{', '.join(self.consumers)}; use the chart and the images of one version"
            )


def main(model: str | None = None, /, config: Annotated[SetupConfig, FLAT] = SetupConfig()) -> None:
    """Set up the broker for MODEL: a folder in Hugging Face format, a hub id, or none."""
    setup_logging("setup", config.log_level, config.log_format)
    name = config.model_name or (None if model is None else served_name(model))
    names = None if name is None else Names.of(Subjects(config.prefix), name)
    if names is not None:
        names.check(config.expect_consumers)
    if not config.dry_run:
        files = None if model is None else _read_files(model, config)
        asyncio.run(_set_up(config, files, names))
    printed = {} if names is None else dataclasses.asdict(names)
    sys.stdout.write(json.dumps(printed, indent=2) + "\n")


def _read_files(model: str, config: SetupConfig) -> ModelFiles:
    """Raises ConfigError, also for weights that are damaged."""
    path = resolve_model(model)
    if weight_files(path):
        check_served_weights(path)
    return ModelFiles.read(path, options=ModelOptions.of(config))


async def _set_up(config: SetupConfig, files: ModelFiles | None, names: Names | None) -> None:
    if config.after_restore:
        async with open_connection(config, "setup") as nc:
            await adopt_restored(JetStream(nc, domain=config.nats_js_domain), config)
    async with open_cluster(config, "setup") as cluster:
        log.info("byte_budget", replicas=config.replicas, a_copy=str(ByteBudget.of(config)))
        try:
            await once_settled(lambda: close_rollups(cluster), config.nats_connect_timeout_s)
            if config.change_replicas:
                await change_replicas(cluster, config.change_timeout_s)
            if names is not None:
                await _make(cluster, files, names)
        except BrokerError as exc:
            raise ConfigError(f"{config.nats_url} refused: {exc}") from exc


async def _make(cluster: Cluster, files: ModelFiles | None, names: Names) -> None:
    if files is not None:
        await ModelCatalog(cluster).register(files, names.model, is_kept=True)
    else:
        js, subjects, config = cluster.js, cluster.subjects, cluster.config
        await once_settled(
            lambda: ensure_consumers(js, subjects, names.pool, config.ack_wait_s),
            config.nats_connect_timeout_s,
        )


PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=main, first=("nats_url", "replicas"))

if __name__ == "__main__":
    PROGRAM.run()
