"""A program of ours: what it is called, how it is told what to do, and how it ends."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import cyclopts
from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

from shared.config import ENV_PREFIX
from shared.errors import ConfigError, JetflockError

USAGE = 2  # status: of a wrong flag, as of ConfigError
INTERRUPTED = 130  # status: ended by Ctrl-C, as a shell says it

_HELP_FLAGS = ("--help", "-h", "--help-all")
_MORE = """\
--help-all shows all flags. Each is also a variable (JETFLOCK_NATS_URL), and a
key (nats-url) of the YAML file that --config names. Flags win, then variables.
"""
_STATUS = "Status: 0 done, 1 failed, 2 wrong flag or configuration, 130 ended by Ctrl-C.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Either one function, or commands by name. Their last parameter is the configuration.

    Values come from flag, environment, YAML, default in this order.
    """

    name: str
    summary: str
    main: Callable[..., Any] | None = None
    commands: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    takes_file: bool = True  # else `--config` is an argument like any other
    first: tuple[str, ...] = ("nats_url",)  # fields that --help shows of the groups
    ignored: tuple[str, ...] = ()  # words that may stand anywhere, and mean nothing
    takes_peer_flags: bool = False  # vLLM's and others' flags are taken, or answered

    def app(self, argv: list[str], *observers: Callable[..., Any]) -> cyclopts.App:
        """Takes `--config` out of `argv`. `observers` see all values before they are read.

        Raises ConfigError.
        """
        app = cyclopts.App(
            name=self.name,
            help=self.summary,
            config=[*_sources(config_file(argv) if self.takes_file else None), *observers],
            version_flags=[],
            help_flags=_HELP_FLAGS,
            result_action="return_value",
        )
        if not set(_HELP_FLAGS).isdisjoint(argv):
            self._prepare_help(app, is_all="--help-all" in argv)
        if self.main is not None:
            app.default(self.main)
        for name, command in self.commands.items():
            app.command(command, name=name)
        return app

    def run(self, argv: Iterable[str] | None = None) -> None:
        """An error of ours ends the program with one sentence and its status."""
        argv = sys.argv[1:] if argv is None else argv
        words = [word for word in argv if word not in self.ignored]
        try:
            app = self.app(words)
            if self.takes_peer_flags:
                words = self._translated(words)
            app(words, exit_on_error=False, print_error=False)
        except CycloptsError as exc:
            self._say(self.usage_error(exc))
            raise SystemExit(USAGE) from None
        except JetflockError as exc:
            self._fail(exc)
        except BaseExceptionGroup as group:  # of a role's tasks
            ours, others = group.split(JetflockError)
            if ours is None or others is not None:
                raise
            self._fail(_first_of(ours))
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None

    def bound(self, argv: Iterable[str], *observers: Callable[..., Any]) -> inspect.BoundArguments:
        """What `argv` would give to its function, defaults included. Raises ConfigError."""
        words = list(argv)
        try:
            app = self.app(words, *observers)
            if self.takes_peer_flags:
                words = self._translated(words)
            _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        except CycloptsError as exc:
            raise ConfigError(self.usage_error(exc)) from exc
        bound.apply_defaults()
        return bound

    def _fail(self, error: JetflockError) -> NoReturn:
        self._say(str(error))
        raise SystemExit(error.exit_status) from error

    def flags(self) -> set[str]:
        """All of them, of all its commands."""
        app = self.app([])
        apps = [app[name] for name in self.commands]
        apps += [app] if self.main is not None else []
        return {
            name
            for each in apps
            for argument in each.assemble_argument_collection()
            for name in argument.names
            if name.startswith("-")
        }

    def variables(self) -> set[str]:
        """The variables of all its flags, without the prefix."""
        return {
            name.removeprefix("--").upper().replace("-", "_")
            for name in self.flags()
            if name.startswith("--")
        }

    def _translated(self, words: list[str]) -> list[str]:
        """Raises ConfigError."""
        from shared.cli.peer_flags import is_peer_flag, translated  # late: roles are told by serve

        return translated(words, self.flags()) if any(map(is_peer_flag, words)) else words

    def usage_error(self, exc: CycloptsError) -> str:
        """What is wrong with the words it was given, and where the right ones are listed."""
        return f"{_fault(exc)} {self.name} --help-all lists the flags."

    def _prepare_help(self, app: cyclopts.App, *, is_all: bool) -> None:
        from shared.cli.help_page import (  # late: roles start sooner without rich
            HelpPage,
            field_groups,
        )

        groups = field_groups(self._functions)
        app.help_format = "plaintext"
        app.help_formatter = HelpPage(self.first, groups, is_all=is_all)
        app.help_epilogue = _MORE + _STATUS if groups else _STATUS

    @property
    def _functions(self) -> list[Callable[..., Any]]:
        own = [] if self.main is None else [self.main]
        return [*own, *self.commands.values()]

    def _say(self, sentence: str) -> None:
        sys.stderr.write(f"{self.name}: {sentence}\n")


def _fault(exc: CycloptsError) -> str:
    """cyclopts suggests flags, and no keys of files."""
    exc.verbose = False
    if isinstance(exc, UnusedCliTokensError):
        return f"Unexpected argument {(exc.unused_tokens or [''])[0]!r}."
    if not isinstance(exc, UnknownOptionError) or exc.token.source == "cli":
        return str(exc).strip()
    key = (exc.token.keyword or "").strip("[]")
    known = [name.removeprefix("--") for each in exc.argument_collection for name in each.names]
    near = difflib.get_close_matches(key, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"Unknown key {key!r} in {exc.token.source}.{hint}"


def _sources(yaml_file: Path | None) -> list[Any]:
    sources: list[Any] = [cyclopts.config.Env(ENV_PREFIX, command=False)]
    if yaml_file is not None:
        _check_yaml(yaml_file)
        sources.append(cyclopts.config.Yaml(yaml_file, must_exist=True, use_commands_as_keys=False))
    return sources


def _check_yaml(path: Path) -> None:
    """Raises ConfigError: what the library says of a file that it cannot read does not name it."""
    import yaml  # late: most are started without a file

    try:
        yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"cannot read --config {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--config {path} is no YAML: {' '.join(str(exc).split())}") from exc


def config_file(argv: list[str]) -> Path | None:
    """The YAML file named by `--config` or JETFLOCK_CONFIG; removes the flag from `argv`.

    Raises ConfigError.
    """
    for i, word in enumerate(argv):
        if word == "--config":
            if i + 1 == len(argv):
                raise ConfigError("--config needs the name of a YAML file")
            del argv[i]
            return Path(argv.pop(i))
        if word.startswith("--config="):
            del argv[i]
            return Path(word.removeprefix("--config="))
    from_env = os.environ.get(f"{ENV_PREFIX}CONFIG")
    return Path(from_env) if from_env else None


def _first_of(group: BaseExceptionGroup[JetflockError]) -> JetflockError:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
