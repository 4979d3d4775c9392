"""`jetflock setup`: makes what a deployment must find before its roles and its scaler start."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Annotated

from shared.cluster import Cluster, open_cluster
from shared.config import FLAT, ClusterConfig
from shared.errors import BrokerError, ConfigError
from shared.log import setup_logging
from shared.model_catalog import ModelCatalog
from shared.model_files import ModelFiles, resolve_model, served_name
from shared.program import Program
from shared.streams import ensure_consumers
from shared.subjects import Subjects, pool_slug

_NAME = "jetflock setup"
_SUMMARY = """\
Make the streams, and the consumers of a model's pool; with MODEL its card and tokenizer, too.

A scaler reads consumers by name, so they must be there before it. Running it again changes nothing.
What there is then is printed as JSON."""


@dataclass(frozen=True, kw_only=True)
class SetupConfig(ClusterConfig):
    """Flags of `jetflock setup`."""

    model_name: str | None = None
    """Name under which the model is served; by default the folder's name or the hub id."""
    max_context_len: int | None = None
    """As the workers are told it: a stretched context makes another revision."""
    expect_consumers: tuple[str, ...] = ()
    """Refuse unless the pool's consumers have exactly these names: a scaler was told them."""
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
    return ModelFiles.read(resolve_model(model), max_context_len=config.max_context_len)


async def _set_up(config: SetupConfig, files: ModelFiles | None, names: Names | None) -> None:
    async with open_cluster(config, "setup") as cluster:
        try:
            if names is not None:
                await _make(cluster, files, names)
        except BrokerError as exc:
            raise ConfigError(f"{config.nats_url} refused: {exc}") from exc


async def _make(cluster: Cluster, files: ModelFiles | None, names: Names) -> None:
    if files is not None:
        await ModelCatalog(cluster).register(files, names.model)
    else:
        await ensure_consumers(cluster.js, cluster.subjects, names.pool, cluster.config.ack_wait_s)


PROGRAM = Program(
    name=_NAME, summary=_SUMMARY, main=main, first=("nats_url", "replicas", "num_partitions")
)

if __name__ == "__main__":
    PROGRAM.run()
