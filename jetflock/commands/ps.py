"""`jetflock ps`: every `jetflock serve` of this user on this machine."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import datetime
from typing import Annotated

import msgspec
from cyclopts import Parameter

from deploy.local.running_stack import RunningStack, running_stacks
from deploy.local.tree_memory import tree_memory_bytes
from jetflock.command_line.output import num_bytes_text, print_json, print_table
from shared.cli.program import Program

_SUMMARY = "List each jetflock serve that runs here: pid, model, memory, URL, NATS, since when."
_COLUMNS = ("pid", "model", "memory", "url", "nats", "since")


def main(*, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> None:
    """List."""
    stacks = running_stacks()
    if as_json:
        print_json(
            [
                msgspec.to_builtins(stack) | {"memory_bytes": tree_memory_bytes(stack.pid)}
                for stack in stacks
            ]
        )
        return
    print_table(_COLUMNS, [_row(stack) for stack in stacks], "no jetflock serve runs here")


def _row(stack: RunningStack) -> list[str]:
    """Memory is that of the machine: jetflock top tells that of its GPUs."""
    num_bytes = tree_memory_bytes(stack.pid)
    memory = "unknown" if num_bytes is None else num_bytes_text(num_bytes)
    return [
        str(stack.pid),
        stack.model,
        memory,
        stack.url,
        stack.nats_url,
        _clock(stack.started_at),
    ]


def _clock(at: float) -> str:
    return datetime.datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


PROGRAM = Program(name="jetflock ps", summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
