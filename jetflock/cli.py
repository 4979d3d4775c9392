"""The `jetflock` command: finds what was asked for, and imports it only then."""

from __future__ import annotations

import difflib
import errno
import os
import select
import sys
from pathlib import Path
from typing import NoReturn

from jetflock.command_line.command_table import COMMANDS

_HELP = ("--help", "-h", "help")
_VERSION = ("--version", "version")
_VARIABLES = "JETFLOCK_"
_FAILED = 1
_USAGE = 2
_INTERRUPTED = 130  # as a shell says it
_COLUMN = 12


def main() -> None:
    """Entry point of the command."""
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:  # before a program listens for it
        raise SystemExit(_INTERRUPTED) from None
    except OSError as exc:
        if exc.errno != errno.ENOSPC and not _is_output_lost():
            raise
        _end_without_output(exc)


def _run() -> None:
    find_components()
    name, *rest = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        run_command(name, rest)
    elif name in _HELP:
        sys.stdout.write(help_text())
    elif name in _VERSION:
        sys.stdout.write(version_text())
    else:
        sys.stderr.write(unknown(name))
        raise SystemExit(_USAGE)


def _is_output_lost() -> bool:
    """Its reader is gone, or what could not be written is kept, and fails again."""
    readers = select.poll()
    readers.register(sys.stdout.fileno(), 0)
    if readers.poll(0):
        return True
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _end_without_output(exc: OSError) -> NoReturn:
    """A reader that has seen enough, as `head`, is no error worth a word; a full disk is."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
    if exc.errno == errno.ENOSPC:
        sys.stderr.write(f"jetflock: cannot write: {exc.strerror}\n")
    raise SystemExit(_FAILED) from None


def find_components() -> None:
    """Installed from a wheel, the roles lie inside this package; child processes find them too."""
    components = Path(__file__).parent / "components"
    if components.is_dir():
        sys.path.insert(0, str(components))
        paths = [str(components), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def run_command(name: str, argv: list[str]) -> None:
    """Run a command's program with `argv`; ends the process when a part is not installed."""
    from jetflock.command_line.command_program import program_of  # late: --help needs no library

    command = COMMANDS[name]
    sys.argv = [f"jetflock {name}", *argv]
    try:
        _check_variables(name)
        program_of(command).run()
    except ModuleNotFoundError as exc:
        from shared.machine.installation import install_command  # late: hardly ever needed

        package = (exc.name or "").split(".")[0]
        if package in ("", "deploy", "shared", *COMMANDS):
            raise
        sys.stderr.write(
            f"jetflock {name} needs the Python package {package!r}, which is not installed: "
            f"{install_command(command.extra)}\n"
        )
        raise SystemExit(_USAGE) from None


def _check_variables(command: str) -> None:
    """Warns of what is set and has no effect; the same environment is for all commands."""
    if not any(name.startswith(_VARIABLES) for name in os.environ):
        return
    from jetflock.command_line.command_program import complaints  # late, too

    for complaint in complaints(command, os.environ):
        sys.stderr.write(f"jetflock {command}: {complaint}\n")


def help_text() -> str:
    """All commands, by group. By hand: a library takes a third of a second for it."""
    lines = [
        "Usage: jetflock COMMAND",
        "Serves large language models from a queue. jetflock COMMAND --help explains one.",
    ]
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        rows = [
            f"  {name.ljust(_COLUMN)}{command.summary}"
            for name, command in COMMANDS.items()
            if command.group == group
        ]
        lines += ["", f"{group}:", *rows]
    return "\n".join([*lines, f"  {'version'.ljust(_COLUMN)}Print the version.", ""])


def version_text() -> str:
    """One line."""
    from importlib.metadata import version  # late: it takes longer than all else here

    return f"jetflock {version('jetflock')}\n"


def unknown(name: str) -> str:
    """What is said of a word that is no command."""
    near = difflib.get_close_matches(name, [*COMMANDS, "version"], 1)
    hint = f"did you mean {near[0]!r}?" if near else "jetflock --help lists them."
    return f"jetflock: there is no command {name!r}; {hint}\n"


if __name__ == "__main__":
    main()
