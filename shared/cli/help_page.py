"""The help of a program: flags in groups, the ones that matter first, the others on request."""

from __future__ import annotations

import dataclasses
import inspect
import io
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cyclopts.help import HelpEntry, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.text import Text

from shared.config import ENV_PREFIX

_OWN_TITLE = "Flags"
_MAX_LABEL = 34  # columns; a longer one has a line of its own
_UNITS = (("_s", "SECONDS"), ("_bytes", "BYTES"), ("_tokens", "TOKENS"), ("port", "PORT"))
_MAX_CHOICES = 32  # characters of values that stand in place of their type
_NO_DEFAULT = ("", '""', "None", "()")
_WIDE = 10_000
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class HelpPage:
    """Formats what cyclopts collects: plain lines, without colours when nobody looks on.

    A field of a class that has a `help_group` belongs to that group, and is shown if it is one of
    `first`, or if all are; all others are always shown.
    """

    def __init__(self, first: Iterable[str], group_of: Mapping[str, str], *, is_all: bool) -> None:
        self._first = tuple(first)
        self._group_of = group_of
        self._is_all = is_all

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        if usage:
            _print(console, Text(f"Usage: {_plain(usage)}"))

    def render_description(self, console: Console, options: ConsoleOptions, text: Any) -> None:
        if text:
            _print(console, Text(f"\n{_plain(text)}"))

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        if panel.format == "command":
            rows = [
                (" ".join(entry.display_labels), _plain(entry.description))
                for entry in panel.entries
                if "--help" not in entry.names
            ]
            _print_group(console, _plain(panel.title), rows)
            return
        for title, entries in self._groups(panel.entries).items():
            rows = [(_label(entry), self._text(entry)) for entry in entries]
            _print_group(console, title, rows)

    def _groups(self, entries: Iterable[HelpEntry]) -> dict[str, list[HelpEntry]]:
        groups: dict[str, list[HelpEntry]] = {}
        for entry in sorted(entries, key=self._rank):
            name = _field(entry)
            group = self._group_of.get(name)
            if not name or (group and name not in self._first and not self._is_all):
                continue
            title = group if group and self._is_all else _OWN_TITLE
            groups.setdefault(title, []).append(entry)
        return groups

    def _rank(self, entry: HelpEntry) -> int:
        """Own flags first; on one screen the others as `first` has them."""
        name = _field(entry)
        is_ranked = not self._is_all and self._group_of.get(name) and name in self._first
        return 1 + self._first.index(name) if is_ranked else 0

    def _text(self, entry: HelpEntry) -> str:
        notes = []
        if entry.choices and entry.metavar == "CHOICE" and _metavar(entry) == "CHOICE":
            notes.append(f"one of {', '.join(entry.choices)}")
        if default := _default(entry):
            notes.append(f"default {default}" if self._is_all else default)
        if self._is_all:
            notes.append(f"{ENV_PREFIX}{_field(entry).upper()}")
        note = f" [{'; '.join(notes)}]" if notes else ""
        return " ".join(_plain(entry.description).split()) + note


def field_groups(functions: Iterable[Callable[..., Any]]) -> dict[str, str]:
    """The help group of each field of the configurations that these functions take.

    It is that of the first class, from the base on, that has the field.
    """
    owners: dict[str, str] = {}
    for config_class in _config_classes(functions):
        for owner in reversed(config_class.__mro__):
            for name in inspect.get_annotations(owner):
                owners.setdefault(name, vars(owner).get("help_group", ""))
    return {name: group for name, group in owners.items() if group}


def _config_classes(functions: Iterable[Callable[..., Any]]) -> Iterator[type]:
    for function in functions:
        for hint in typing.get_type_hints(function).values():
            if isinstance(hint, type) and dataclasses.is_dataclass(hint):
                yield hint


def _field(entry: HelpEntry) -> str:
    names = [name for name in entry.names if name.startswith("--")]
    return names[0].removeprefix("--").replace("-", "_") if names else ""


def _label(entry: HelpEntry) -> str:
    longs, negatives = list(entry.positive_names), entry.negative_names
    if longs and negatives and negatives[0] == f"--no-{longs[0].removeprefix('--')}":
        longs[0] = f"--[no-]{longs[0].removeprefix('--')}"
    label = ", ".join([*longs, *entry.positive_shorts])
    metavar = _metavar(entry)
    return f"{label} {metavar}" if metavar else label


def _metavar(entry: HelpEntry) -> str:
    if not entry.metavar:
        return ""
    if entry.choices and len(choices := "|".join(entry.choices)) <= _MAX_CHOICES:
        return choices
    if entry.metavar in ("INT", "FLOAT"):
        return next((unit for end, unit in _UNITS if _field(entry).endswith(end)), entry.metavar)
    return entry.metavar.replace("STR", "TEXT")


def _default(entry: HelpEntry) -> str:
    text = entry.default or ""
    if text in _NO_DEFAULT:
        return ""
    if text in ("True", "False"):
        return "on" if text == "True" else "off"
    if _field(entry).endswith("_bytes") and text.isdigit():
        size = int(text)
        return next((f"{size // n} {unit}" for n, unit in _SIZES if size and not size % n), text)
    return text.removesuffix(".0")


def _print_group(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    if not rows:
        return
    _print(console, Text(f"\n{title}:", style="bold"))
    width = min(_MAX_LABEL, max(len(label) for label, _ in rows))
    for label, text in rows:
        line = Text("  ").append(label.ljust(width), style="cyan")
        indent = " " * (width + 4)
        if len(label) > width and console.is_terminal:
            _print(console, line)
            line = Text(indent)
        else:
            line.append("  ")
        _print(console, line.append(_wrapped(text, indent, console)))


def _wrapped(text: str, indent: str, console: Console) -> str:
    """To the width of a terminal; a program gets whole lines."""
    if not console.is_terminal:
        return text
    lines = textwrap.wrap(text, max(20, console.width - len(indent)), break_on_hyphens=False)
    return f"\n{indent}".join(lines)


def _print(console: Console, text: Text) -> None:
    text.rstrip()
    console.print(text, soft_wrap=True, highlight=False)


def _plain(value: Any) -> str:
    """The words of whatever rich can show."""
    if value is None:
        return ""
    console = Console(file=io.StringIO(), width=_WIDE, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(value, end="", soft_wrap=True)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().split("\n"))
