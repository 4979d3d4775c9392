"""`jetflock train-draft MODEL`: makes a small model that guesses for a large one."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import cyclopts
import msgspec

from shared.checkpoint.model_files import resolve_model
from shared.cli.program import Program
from worker.engine_link.train_config import DraftKind, TrainConfig

_SUMMARY = """\
Train a draft model for MODEL, which `jetflock serve MODEL --draft-model OUT` takes; or an MTP
head, in a copy of MODEL, for `jetflock serve OUT --speculate mtp`.

MODEL answers the prompts, and a few of its layers learn to say what all of them say. The prompts
should be as those of its users are: what it guesses well is what it has seen."""


def main(
    model: str,
    /,
    *,
    prompts: Annotated[
        Path, cyclopts.Parameter(help='JSON lines, each with "messages" or "prompt".')
    ],
    out: Annotated[Path, cyclopts.Parameter(help="Folder for the draft model.")],
    kind: Annotated[
        DraftKind,
        cyclopts.Parameter(help="A small model; or a head, which reads MODEL's streams."),
    ] = "model",
    num_layers: Annotated[int, cyclopts.Parameter(help="Of the draft model.")] = 1,
    max_prompts: Annotated[int, cyclopts.Parameter(help="Of the file, the first ones.")] = 4096,
    num_steps: Annotated[int, cyclopts.Parameter(help="Of training.")] = 600,
    num_threads: Annotated[
        int | None, cyclopts.Parameter(help="By default one for each core.")
    ] = None,
    seed: int = 0,
) -> None:
    """Train it."""
    config = TrainConfig(
        model_path=str(resolve_model(model)),
        prompts=str(prompts),
        out=str(out),
        kind=kind,
        num_layers=num_layers,
        max_prompts=max_prompts,
        num_steps=num_steps,
        num_threads=num_threads,
        seed=seed,
    )
    argv = [sys.executable, "-P", "-m", "worker.engine.training"]
    done = subprocess.run(  # noqa: S603 - our own program
        [*argv, msgspec.json.encode(config).decode()], check=False
    )
    raise SystemExit(done.returncode)


PROGRAM = Program(name="jetflock train-draft", summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
