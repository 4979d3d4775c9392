"""The `jetflock` and `make` commands of a shell block that is not run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from jetflock.command_line.command_table import COMMANDS


class CommandLine(NamedTuple):
    """`words` name the command, as ("admin", "drain"); `flags` are those given to it."""

    program: str
    words: tuple[str, ...]
    flags: tuple[str, ...]


def command_lines(script: str) -> Iterator[CommandLine]:
    """In order; a comment, a pipe or `&&` ends a command. Raises ValueError on an open quote."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;()"):
                yield from _ours(command)
                command = []
            else:
                command.append(word)


def _ours(words: list[str]) -> Iterator[CommandLine]:
    while words and re.fullmatch(r"\w+=.*", words[0]):  # NAME=value before a command
        words = words[1:]
    if not words or words[0] not in ("jetflock", "make"):
        return
    if words[:3] == ["jetflock", "service", "install"] and "--" in words:  # behind it: of serve
        at = words.index("--")
        yield from _ours(["jetflock", "serve", *words[at + 1 :]])
        words = words[:at]
    flags = tuple(word.split("=")[0] for word in words if re.match(r"--?[a-z]", word))
    if words[0] == "make":
        yield CommandLine("make", tuple(word for word in words[1:] if "=" not in word), ())
        return
    named = words[1:2]
    if named and named[0] in COMMANDS:  # what follows is perhaps a sub-command, perhaps a value
        named += [word for word in words[2:3] if re.fullmatch(r"[a-z][a-z-]*", word)]
    yield CommandLine("jetflock", tuple(named), flags)
