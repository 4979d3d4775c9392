"""What a checkpoint says of its quantisation, told by whichever tool has made it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shared.checkpoint.formats.linear_format import LinearFormat
from shared.checkpoint.formats.section import Section
from shared.errors import ConfigError

_REGEX = "re:"


@dataclass(frozen=True, slots=True)
class FormatRule:
    """Which modules are stored in a format: by name, by "re:" and a pattern, or by class."""

    format: LinearFormat
    targets: tuple[str, ...] = ()  # empty: any

    def names(self, module: str) -> bool:
        return matches(module, self.targets)

    @property
    def is_general(self) -> bool:
        """Some of its targets are classes, or it has none: "Linear" is any module."""
        return not self.targets or any(_is_class(target) for target in self.targets)


@dataclass(frozen=True, slots=True)
class Quantization:
    """Where each module's format is found. A module that is stored in 16 bits stays so."""

    method: str  # of the tool: "gptq"
    rules: tuple[FormatRule, ...]
    ignore: tuple[str, ...] = ()  # modules that are never quantised, as targets are named

    @property
    def name(self) -> str:
        """What people read: "gptq: int4 in groups of 128"."""
        names = dict.fromkeys(rule.format.name for rule in self.rules)
        return f"{self.method}: {', '.join(names)}"

    @property
    def code_bits(self) -> float | None:
        """At most, as `LinearFormat` says it; None where some weights are made dense."""
        found = [rule.format.code_bits for rule in self.rules]
        told = [bits for bits in found if bits is not None]
        return max(told) if len(told) == len(found) else None

    def formats_of(self, module: str) -> Sequence[LinearFormat]:
        """Those that it may be stored in. Raises ConfigError for one that is to be ignored."""
        if matches(module, self.ignore):
            raise ConfigError(f"{module!r} is quantised, and {self.method} says that it is not")
        named = [rule.format for rule in self.rules if rule.names(module)]
        return named or [rule.format for rule in self.rules if rule.is_general]


def matches(module: str, targets: Sequence[str]) -> bool:
    """Whether one of them names it, or is a pattern of its name."""
    return any(
        re.match(target.removeprefix(_REGEX), module) is not None
        if target.startswith(_REGEX)
        else target == module
        for target in targets
    )


def check_pattern(section: Section, target: str) -> None:
    """Raises ConfigError for a target that is to be a pattern, and is none."""
    if not target.startswith(_REGEX):
        return
    try:
        re.compile(target.removeprefix(_REGEX))
    except (re.error, RecursionError, OverflowError) as exc:
        raise section.error(f"{target!r} is no pattern: {exc}") from exc


def _is_class(target: str) -> bool:
    return target[:1].isupper()
