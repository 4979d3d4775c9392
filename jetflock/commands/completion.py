"""`jetflock completion SHELL`: a script by which a shell completes commands and their flags."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import sys
from typing import Literal

import cyclopts

from jetflock.command_line.command_program import program_of
from jetflock.command_line.command_table import COMMANDS
from shared.cli.program import Program

_SUMMARY = """\
Print a script by which SHELL (bash, zsh or fish) completes commands, flags and their values.

The shell knows it all then, and starts nothing at the Tab key. For bash:
jetflock completion bash > ~/.local/share/bash-completion/completions/jetflock"""


def main(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Write it to stdout."""
    sys.stdout.write(command_tree().generate_completion(prog_name="jetflock", shell=shell) + "\n")


def command_tree() -> cyclopts.App:
    """All commands that can run here, with all of their flags."""
    root = cyclopts.App(name="jetflock", version_flags=["--version"])
    for name, command in COMMANDS.items():
        try:
            app = program_of(command).app([])
        except ModuleNotFoundError:  # of an extra that is not installed
            app = cyclopts.App()
        root.command(app, name=name)
    root.command(cyclopts.App(help="Print the version."), name="version")
    return root


PROGRAM = Program(name="jetflock completion", summary=_SUMMARY, main=main)

if __name__ == "__main__":
    PROGRAM.run()
