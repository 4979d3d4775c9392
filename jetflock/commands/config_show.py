"""`jetflock config show COMMAND`: what a command would be told, and by what."""

# No `from __future__ import annotations` here: cyclopts reads the types of the parameters.

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import cyclopts
from cyclopts import Parameter

from jetflock.command_line.command_program import program_of
from jetflock.command_line.command_table import COMMANDS
from jetflock.command_line.output import print_json, print_table
from shared.cli.program import Program
from shared.errors import ConfigError

_NAME = "jetflock config"
_SUMMARY = "Look at a configuration without starting anything."
_COLUMNS = ("key", "value", "from")
_ROLES = ("serve", "frontend", "worker", "detok", "autoscale")
_SECRETS = ("api_key", "nats_password")
_HIDDEN = "***"
_USERINFO = re.compile(r"(?<=://)[^/@,]+@")

_AsJson = Annotated[bool, Parameter(name="--json", negative="")]
_Words = Annotated[str, Parameter(allow_leading_hyphen=True)]


class Setting(NamedTuple):
    """A value, and whether a flag, a variable, a file or nobody has set it."""

    key: str
    value: Any
    source: str


def show(command: str, /, *words: _Words, as_json: _AsJson = False) -> None:
    """The effective values of COMMAND (serve, worker, ...) with the flags behind it.

    Each comes with its source: flag, the variable's name, the file's name, or default. What the
    command would refuse is an error here, too. Secrets are not shown.
    """
    if command not in COMMANDS or program_of(COMMANDS[command]).main is None:
        known = ", ".join(_ROLES)
        raise ConfigError(f"{command!r} has no configuration to show; try {known}")
    program = program_of(COMMANDS[command])
    settings = list(_settings(program, words))
    if as_json:
        print_json({each.key: {"value": each.value, "from": each.source} for each in settings})
        return
    print_table(_COLUMNS, [[each.key, _text(each.value), each.source] for each in settings], "")


def _settings(program: Program, argv: Iterable[str]) -> Iterator[Setting]:
    """The settings in the order of the configuration's fields. Raises ConfigError."""
    seen: dict[str, str] = {}  # field -> source

    def observe(app: cyclopts.App, commands: tuple[str, ...], arguments: Any) -> None:
        for argument in arguments:
            if argument.tokens:
                seen[_field(argument.name)] = _source(argument.tokens[0])

    for config in program.bound(argv, observe).arguments.values():
        if not dataclasses.is_dataclass(config):
            continue
        for field in dataclasses.fields(config):
            value = _shown(field.name, getattr(config, field.name))
            yield Setting(field.name.replace("_", "-"), value, seen.get(field.name, "default"))


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _source(token: cyclopts.Token) -> str:
    if token.source == "cli":
        return "flag"
    return str(token.keyword) if token.source == "env" else token.source


def _shown(name: str, value: Any) -> Any:
    if name in _SECRETS and value:
        return _HIDDEN
    if isinstance(value, str):
        return _USERINFO.sub(f"{_HIDDEN}@", value)
    return list(value) if isinstance(value, tuple) else value if _is_plain(value) else str(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


PROGRAM = Program(name=_NAME, summary=_SUMMARY, commands={"show": show}, takes_file=False)

if __name__ == "__main__":
    PROGRAM.run()
