"""`jetflock models [MODEL]`: what is served, or what a checkpoint would be served as."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from jetflock.existing_cluster import existing_cluster
from jetflock.output import print_json, print_table
from shared.config import FLAT, ClusterConfig
from shared.control_plane import ControlPlane
from shared.errors import BrokerError, ConfigError
from shared.model_files import ModelFiles, resolve_model, served_name
from shared.program import Program
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import WorkerCard

_NAME = "jetflock models"
_SUMMARY = """\
List the models that are served: revision, context, tasks, adapters, workers and their states.

With MODEL, a folder in Hugging Face format, what that would be served as."""
_COLUMNS = ("model", "revision", "context", "tasks", "adapters", "workers")


@dataclass(frozen=True, kw_only=True)
class ModelsConfig(ClusterConfig):
    """Flags of `jetflock models`."""

    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print JSON."""


_DEFAULTS = ModelsConfig()


def main(model: str | None = None, /, config: Annotated[ModelsConfig, FLAT] = _DEFAULTS) -> None:
    """List."""
    facts = asyncio.run(_served(config)) if model is None else [_would_be(model)]
    if config.as_json:
        print_json(facts)
        return
    rows = [[_text(each[column]) for column in _COLUMNS] for each in facts]
    print_table(_COLUMNS, rows, "no model is served")


async def _served(config: ModelsConfig) -> list[dict[str, Any]]:
    async with existing_cluster(config, _NAME) as cluster:
        plane = ControlPlane(cluster, _NAME)
        try:
            cards, workers = await plane.models(), await plane.workers()
        except BrokerError as exc:
            raise ConfigError(f"NATS at {config.nats_url} refused: {exc}") from exc
    return [_facts(card, [each for each in workers if each.pool == card.pool]) for card in cards]


def _would_be(model: str) -> dict[str, Any]:
    """Raises ConfigError."""
    if not Path(model).expanduser().is_dir():
        raise ConfigError(f"there is no folder {model}; jetflock doctor looks at hub ids")
    files = ModelFiles.read(resolve_model(model))
    return _facts(files.card(served_name(model), files.tokenizer_bundle()), ())


def _facts(card: ModelCard, workers: Sequence[WorkerCard]) -> dict[str, Any]:
    states = [worker.state.value for worker in workers]
    return {
        "model": card.name,
        "revision": card.revision,
        "context": card.max_context_len,
        "tasks": _tasks(card),
        "adapters": [adapter.name for adapter in card.adapters],
        "workers": {state: states.count(state) for state in sorted(set(states))},
    }


def _tasks(card: ModelCard) -> list[str]:
    can = {
        "generate": card.can_generate,
        "embed": card.embedding is not None,
        "score": card.score is not None,
        "see": card.vision is not None,
    }
    return [name for name, is_possible in can.items() if is_possible]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{num} {state}" for state, num in value.items()) or "none"
    return ", ".join(value) if isinstance(value, list) else str(value)


PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=main)

if __name__ == "__main__":
    PROGRAM.run()
