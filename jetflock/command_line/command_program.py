"""The program behind a command, and the variables JETFLOCK_* that none of them has."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping

from jetflock.command_line.command_table import COMMANDS, Command
from shared.cli.garbage import importing_much
from shared.cli.program import Program
from shared.config import ENV_PREFIX

# No flags: the file of flags, the tests' own, and what Kubernetes sets for a Service `jetflock`.
_NO_FLAG = re.compile(r"CONFIG|TEST_\w+|(\w+_)?SERVICE_(HOST|PORT)(_\w+)?|(\w+_)?PORT_\d+_\w+")
_LINK = re.compile(r"(tcp|udp|sctp)://")
_SURELY_NEAR = 0.85


def program_of(command: Command) -> Program:
    """Import it, and what it needs. Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec(command.module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    name = f"{command.module}.__main__" if is_package else command.module
    with importing_much():
        program = importlib.import_module(name).PROGRAM
    assert isinstance(program, Program)
    return program


def complaints(command: str, environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence of each variable that no command has: misspelt, most likely, and without effect.

    Other commands are imported only when `command` does not have it.

    Raises ModuleNotFoundError when a package of `command` is not installed.
    """
    set_here = {
        name.removeprefix(ENV_PREFIX)
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX) and not _LINK.match(value)
    }
    known = program_of(COMMANDS[command]).variables()
    unknown = {name for name in set_here - known if not _NO_FLAG.fullmatch(name)}
    is_whole = True
    for other in COMMANDS.values():
        if not unknown:
            return
        try:
            known |= program_of(other).variables()
        except ModuleNotFoundError:
            is_whole = False
        unknown -= known
    for name in sorted(unknown):
        near = difflib.get_close_matches(name, known, 1, 0.6 if is_whole else _SURELY_NEAR)
        if near or is_whole:  # else it may be one of a command whose packages are not here
            hint = f" Did you mean {ENV_PREFIX}{near[0]}?" if near else ""
            yield f"{ENV_PREFIX}{name} is set, and is no variable of any command.{hint}"
