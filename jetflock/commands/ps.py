"""`jetflock ps`: every `jetflock serve` of this user on this machine."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import datetime
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from deploy.local.running_stack import RunningStack, running_stacks
from jetflock.command_line.output import num_bytes_text, print_json, print_table
from shared.cli.program import Program

_SUMMARY = "List each jetflock serve that runs here: pid, model, memory, URL, NATS, since when."
_PARENT = 1  # place in /proc/PID/stat behind the program's name, which may hold blanks
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


def tree_memory_bytes(pid: int) -> int | None:
    """What a process and all that it started hold of this machine's memory; pages that several of
    them share count once. None where there is no such process, or /proc does not say.
    """
    sizes = [size for each in _tree(pid) if (size := _own_bytes(each)) is not None]
    return sum(sizes) if sizes else None


def _tree(pid: int) -> list[int]:
    children = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        children[int(fields[_PARENT])].append(int(folder.name))
    tree = [pid]
    for each in tree:
        tree += children[each]
    return tree


def _own_bytes(pid: int) -> int | None:
    """A page that several processes map counts in part for each."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    sizes = (line.split()[1] for line in lines if line.startswith("Pss:"))
    return int(next(sizes, "0")) * 1024


PROGRAM = Program(name="jetflock ps", summary=_SUMMARY, main=main, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
