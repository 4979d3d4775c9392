"""Reads the section of a JSON file that tells of quantisation, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from shared.errors import ConfigError

WAY_OUT = "take the original in 16 bits, or another tool's version"

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Section:
    """Where it stands, and what it holds."""

    place: str  # "/models/x/config.json: quantization_config"
    values: Mapping[str, Any]

    def decode(self, kind: type[T]) -> T:
        """A struct that knows all its fields: one that we do not know may change what others mean.

        Raises ConfigError.
        """
        try:
            return msgspec.convert(self.values, kind)
        except msgspec.ValidationError as exc:
            raise self.error(str(exc)) from exc

    def error(self, what: str) -> ConfigError:
        return ConfigError(f"{self.place}: {what}; {WAY_OUT}")
