"""`jetflock models [MODEL]`: what is served, or what a checkpoint would be served as.

`jetflock models forget NAME` removes one that nobody serves any more.
"""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from frontend.parsers.chosen import chosen_parsers
from jetflock.command_line.output import print_json, print_table
from jetflock.running.existing_cluster import existing_cluster
from jetflock.running.running_service import ServiceConfig
from shared.admin.control_plane import ControlPlane, forget_model
from shared.checkpoint.formats.served_weights import check_served_weights
from shared.checkpoint.hub import find_fetched, is_hub_id
from shared.checkpoint.model_files import (
    ModelFiles,
    local_checkpoint,
    resolve_model,
    served_name,
    weight_files,
)
from shared.cli.program import Program
from shared.config import FLAT
from shared.errors import BrokerError, ConfigError, NotFound
from shared.protocol.model_cards import ModelCard
from shared.protocol.role_cards import ChosenParsers, WorkerCard
from shared.snapshot.cluster_reader import ClusterReader

_NAME = "jetflock models"
_SUMMARY = """\
List the models: whether they are served, revision, context, format of its weights, tasks,
adapters, what tells tool calls and reasoning from content, workers by state.

With MODEL, a folder or a hub id that was fetched, what that would be served as."""
_COLUMNS = (
    "model",
    "status",
    "revision",
    "context",
    "weights",
    "tasks",
    "adapters",
    "parsers",
    "workers",
)


@dataclass(frozen=True, kw_only=True)
class ModelsConfig(ServiceConfig):
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
    print_table(_COLUMNS, rows, "there is no model")


def forget(name: str, /, *, config: Annotated[ModelsConfig, FLAT] = _DEFAULTS) -> None:
    """Delete a model that nobody serves, and end the requests that wait for it."""
    num_ended = asyncio.run(_forget(config, name))
    if config.as_json:
        print_json({"model": name, "num_ended": num_ended})
    else:
        sys.stdout.write(f"{name} is forgotten; {num_ended} waiting requests were ended\n")


async def _forget(config: ModelsConfig, name: str) -> int:
    async with existing_cluster(config, _NAME) as cluster:
        try:
            return await forget_model(cluster, ControlPlane(cluster, _NAME), name)
        except NotFound as exc:
            raise ConfigError(exc.message) from exc
        except BrokerError as exc:
            raise ConfigError(f"NATS at {cluster.config.nats_url} refused: {exc}") from exc


async def _served(config: ModelsConfig) -> list[dict[str, Any]]:
    async with existing_cluster(config, _NAME) as cluster:
        try:
            seen = await ClusterReader(cluster).snapshot()
        except BrokerError as exc:
            raise ConfigError(f"NATS at {cluster.config.nats_url} refused: {exc}") from exc
    return [
        _facts(
            card,
            seen.heartbeats.standing(card).status.value,
            [each for each in seen.workers if each.pool == card.pool],
            [role.parsers[card.name] for role in seen.roles if card.name in role.parsers],
        )
        for card in seen.models
    ]


def _would_be(model: str) -> dict[str, Any]:
    """Raises ConfigError."""
    path = find_fetched(model) if is_hub_id(model) else resolve_model(model)
    if path is None:
        raise ConfigError(f"{model} is not on this machine: jetflock pull {model} fetches it")
    files = ModelFiles.read(local_checkpoint(path))
    if weight_files(files.path):
        check_served_weights(files.path)
    bundle = files.tokenizer_bundle()
    parsers = chosen_parsers(bundle.chat_template)
    return _facts(files.card(served_name(model), bundle), "not served", (), [parsers])


def _facts(
    card: ModelCard,
    status: str,
    workers: Sequence[WorkerCard],
    parsers: Sequence[ChosenParsers],
) -> dict[str, Any]:
    """`parsers`: those of each frontend."""
    states = [worker.state.value for worker in workers]
    return {
        "model": card.name,
        "status": status,
        "revision": card.revision,
        "context": card.max_context_len,
        "weights": card.stored_format or "not quantized",
        "num_weight_bytes": card.num_weight_bytes,
        "kv_dtype": card.kv_dtype,
        "activations": card.activations,
        "tasks": _tasks(card),
        "adapters": [adapter.name for adapter in card.adapters],
        "parsers": _parsers(card, parsers),
        "workers": {state: states.count(state) for state in sorted(set(states))},
    }


def _parsers(card: ModelCard, chosen: Sequence[ChosenParsers]) -> dict[str, list[dict[str, Any]]]:
    """The parsers by what they tell from content, with reasons; several where frontends differ."""
    if not card.can_generate:
        return {}
    return {
        kind: [
            {"name": each.name or None, "because": each.because}
            for each in dict.fromkeys(getattr(both, kind) for both in chosen)
        ]
        for kind in ("tools", "reasoning")
    }


def _tasks(card: ModelCard) -> list[str]:
    can = {
        "generate": card.can_generate,
        "embed": card.embedding is not None,
        "score": card.score is not None,
        "classify": card.classifier is not None,
        "see": card.sight is not None,
        "hear": card.sound is not None,
    }
    return [name for name, is_possible in can.items() if is_possible]


def _text(value: Any) -> str:
    if isinstance(value, dict) and "tools" in value:
        return ", ".join(_named(kind, each) for kind, some in value.items() for each in some)
    if isinstance(value, dict):
        return ", ".join(f"{num} {state}" for state, num in value.items()) or "none"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _named(kind: str, parser: dict[str, Any]) -> str:
    return f"{kind}: {parser['name'] or 'none'} ({parser['because']})"


PROGRAM = Program(name=_NAME, summary=_SUMMARY, main=main, commands={"forget": forget})

if __name__ == "__main__":
    PROGRAM.run()
