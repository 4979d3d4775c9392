"""What a GGUF file says of itself, by key; what is missing or wrong is told by its key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shared.errors import ConfigError
from shared.gguf.byte_cursor import MetadataValue

# Of the config.json that is made of a file, with what it says of its format.
CONFIG_SECTION = "gguf"


class Metadata:
    """The values of one model. Every method raises ConfigError for a value that it cannot be."""

    def __init__(self, path: Path, values: Mapping[str, MetadataValue]) -> None:
        self.path = path
        self._values = values

    @property
    def architecture(self) -> str:
        """`llama`, `qwen3`: the prefix of most of its keys."""
        return self.text("general.architecture")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._one(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._one(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._values.get(key)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(key, value, "a list of texts")
        return [str(each) for each in value]

    def numbers(self, key: str) -> list[float]:
        value = self._values.get(key)
        if not isinstance(value, list) or any(isinstance(each, str) for each in value):
            raise self._wrong(key, value, "a list of numbers")
        return [float(each) for each in value]

    def error(self, problem: str) -> ConfigError:
        """To be raised: what is wrong with the file."""
        return ConfigError(f"{self.path}: {problem}")

    def _one(self, key: str, default: float | None) -> MetadataValue | None:
        """A list with a value for each layer counts as one where all are the same."""
        value = self._values.get(key, default)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            return value[0]
        return value

    def _wrong(self, key: str, value: object, wanted: str) -> ConfigError:
        if value is None:
            return self.error(f"there is no {key}")
        shown = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:80]}..."
        return self.error(f"{key} must be {wanted}, not {shown}")
