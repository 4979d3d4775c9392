"""The process of `jetflock train-draft`: `python -m worker.engine.training JSON`."""

from __future__ import annotations

import sys

import msgspec

from shared.errors import ConfigError
from worker.engine.training.draft_trainer import make_draft
from worker.engine_link.train_config import TrainConfig


def main() -> None:
    """Trains one, and prints how far it is."""
    config = msgspec.json.decode(sys.argv[1], type=TrainConfig)
    try:
        make_draft(config, lambda line: print(line, flush=True))  # noqa: T201 - its user reads it
    except ConfigError as exc:
        raise SystemExit(str(exc)) from exc


if __name__ == "__main__":
    main()
