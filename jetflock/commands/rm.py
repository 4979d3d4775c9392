"""`jetflock rm MODEL`: removes a model of the hub from this disk."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import sys
from pathlib import Path

from deploy.local.running_stack import running_stacks
from jetflock.command_line.output import num_bytes_text
from jetflock.hub.hub_cache import FetchedModel, fetched_models, remove_fetched
from shared.cli.program import Program
from shared.errors import ConfigError

_SUMMARY = """\
Remove MODEL (owner/name), with all of its revisions, from the hub's folder on this disk.

A jetflock serve of this user that runs it keeps it. Folders of your own are not touched."""


def main(model: str, /) -> None:
    """Remove it."""
    if Path(model).expanduser().exists():
        raise ConfigError(f"{model} is a folder of yours: only models of the hub are removed")
    for found in fetched_models():
        if found.model == model:
            _check_unused(found)
    freed = remove_fetched(model)
    sys.stdout.write(f"removed {model}: {num_bytes_text(freed)}\n")


def _check_unused(model: FetchedModel) -> None:
    repository = model.path.parent.parent  # REPOSITORY/snapshots/COMMIT
    for stack in running_stacks():
        if repository in Path(stack.model_path).parents:
            raise ConfigError(
                f"{model.model} is served by pid {stack.pid} at {stack.url}: stop that one first"
            )


PROGRAM = Program(name="jetflock rm", summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
