"""`jetflock serve [MODEL]`, or `python -m deploy.local`: reads the configuration and starts."""

from __future__ import annotations

from typing import Annotated

from deploy.local.serve_config import ServeConfig, demo_model
from deploy.local.stack import run_stack
from shared.config import FLAT, run_program


def serve(
    model: str = demo_model(),
    /,
    *,
    config: Annotated[ServeConfig, FLAT] = ServeConfig(),  # noqa: B008
) -> None:
    """Run everything on this machine: nats-server, frontend, detokenizer and workers.

    Parameters
    ----------
    model
        A folder in Hugging Face format, or a hub id; by default a small model that comes along.
    """
    run_stack(model, config)


if __name__ == "__main__":
    run_program("jetflock serve", "", serve)
