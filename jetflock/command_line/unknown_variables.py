"""Variables JETFLOCK_* that no command has: misspelt, most likely, and without effect."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from jetflock.command_line.command_program import program_of
from jetflock.command_line.command_table import COMMANDS
from shared.config import ENV_PREFIX

# No flags: the file of flags, the tests' own, and what Kubernetes sets for a Service `jetflock`.
_NO_FLAG = re.compile(r"CONFIG|TEST_\w+|(\w+_)?SERVICE_(HOST|PORT)(_\w+)?|(\w+_)?PORT_\d+_\w+")
_LINK = re.compile(r"(tcp|udp|sctp)://")
_SURELY_NEAR = 0.85


def complaints(command: str, environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence of each. Other commands are imported only when `command` does not have it.

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
