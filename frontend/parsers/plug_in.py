"""An operator's own parser: a class in a file of its own."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from frontend.parsers.calls.marks import Marks
from frontend.parsers.calls.tool_parser import ToolParser
from frontend.parsers.reasoning import REASONING_PARSERS, ReasoningParser
from frontend.parsers.registry import Registry
from frontend.parsers.tool_parsers import TOOL_PARSERS
from shared.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

P = TypeVar("P", ToolParser, ReasoningParser)


def is_plug_in(choice: str) -> bool:
    """Whether a choice of a parser is a file."""
    return choice.endswith(".py")


def chosen_tool_parser(choice: str) -> ToolParser:
    """The parser of a name, or of a file. Raises ConfigError."""
    seam: type[ToolParser] = ToolParser  # type: ignore[type-abstract]
    return _chosen(choice, seam, TOOL_PARSERS, "--tool-parser")


def chosen_reasoning_parser(choice: str) -> ReasoningParser:
    """The parser of a name, or of a file. Raises ConfigError."""
    return _chosen(choice, ReasoningParser, REASONING_PARSERS, "--reasoning-parser")


def check_choices(tool_parser: str, reasoning_parser: str) -> None:
    """Whether there are such parsers, without a look into files. Raises ConfigError."""
    for choice, registry, flag in (
        (tool_parser, TOOL_PARSERS, "--tool-parser"),
        (reasoning_parser, REASONING_PARSERS, "--reasoning-parser"),
    ):
        if is_plug_in(choice):
            _check_file(Path(choice), flag)
        elif choice not in ("auto", "none") or (choice == "none" and flag == "--tool-parser"):
            registry.chosen(choice)


def _check_file(path: Path, flag: str) -> None:
    if not path.is_file():
        raise ConfigError(f"{flag} {path}: there is no such file")


def _chosen(choice: str, seam: type[P], registry: Registry[P], flag: str) -> P:
    if not is_plug_in(choice):
        return registry.chosen(choice)
    path = Path(choice)
    parser = _loaded(path, seam, flag)
    what = next(_faults(parser), None)
    if what is not None:
        raise ConfigError(f"{flag} {path}: {type(parser).__name__}{what}")
    registry.put_first(parser)
    return parser


def _loaded(path: Path, seam: type[P], flag: str) -> P:
    """An object of the one parser that a file defines. Raises ConfigError."""
    _check_file(path, flag)
    module_name = f"jetflock_plug_in_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # where dataclasses look their types up
    try:
        spec.loader.exec_module(module)
        own = [each for each in _classes(module) if issubclass(each, seam)]
        last = [each for each in own if not any(each in other.__mro__[1:] for other in own)]
        if len(last) != 1:
            names = ", ".join(each.__name__ for each in last) or "none"
            raise ConfigError(
                f"{flag} {path}: must define one class of parsers, from {seam.__module__}."
                f"{seam.__name__} or one of its kind; it defines {names}"
            )
        if missing := sorted(getattr(last[0], "__abstractmethods__", ())):
            raise ConfigError(f"{flag} {path}: {last[0].__name__} lacks {', '.join(missing)}")
        parser: P = last[0]()
    except ConfigError:
        raise
    except (Exception, SystemExit) as exc:  # whatever a program of somebody else may do
        raise ConfigError(
            f"{flag} {path} cannot be loaded: {type(exc).__name__}: {exc}{_line(exc, path)}"
        ) from exc
    return parser


def _classes(module: Any) -> list[type[Any]]:
    return [
        each
        for _, each in inspect.getmembers(module, inspect.isclass)
        if each.__module__ == module.__name__
    ]


def _line(exc: BaseException, path: Path) -> str:
    """Where in the file it went wrong."""
    lines, frame = [], exc.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            lines.append(frame.tb_lineno)
        frame = frame.tb_next
    return f" (line {lines[-1]})" if lines else ""


def _faults(parser: ToolParser | ReasoningParser) -> Iterator[str]:
    """What does not fit the seam."""
    name = getattr(parser, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f".name is {name!r}, must be 1 to 64 letters, digits, _, . and -"
    if parser.has_channels:
        yield ".has_channels is true: GPT-OSS's channels are read by no other parser"
    if isinstance(parser, ToolParser):
        marks = getattr(parser, "marks", None)
        if not isinstance(marks, Marks) or not all(isinstance(mark, str) for mark in marks):
            yield f".marks is {marks!r}, must be Marks of two texts"
        elif not marks.begin and not parser.no_call:
            yield ".marks.begin is empty, and no_call, which it needs then, is too"
        return
    for each in ("begins", "ends"):
        marks = getattr(parser, each, None)
        if (
            not isinstance(marks, tuple)
            or not marks
            or not all(isinstance(mark, str) and mark for mark in marks)
        ):
            yield f".{each} is {marks!r}, must be a tuple of texts, none empty"
