"""The program behind a command, for those that look at it and do not run it."""

from __future__ import annotations

import importlib
import importlib.util

from jetflock.command_line.command_table import Command
from shared.cli.garbage import importing_much
from shared.cli.program import Program


def program_of(command: Command) -> Program:
    """Import it, and what it needs. Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec(command.module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    name = f"{command.module}.__main__" if is_package else command.module
    with importing_much():
        program = importlib.import_module(name).PROGRAM
    assert isinstance(program, Program)
    return program
