"""Reads the head of a GGUF file value by value, and never beyond its end."""

from __future__ import annotations

import mmap
import struct

from shared.errors import ConfigError

MetadataValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")  # of a text, before it
_MAX_BYTES = 1 << 28  # of all texts and lists; vocabularies and their merges are a tenth of it
_ITEM_BYTES = 8  # of a list, at least
# By their number in files: struct's letter for each.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


class ByteCursor:
    """Stands somewhere in the file. Every read raises ConfigError where the file ends first."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._name = name  # of the file, for errors
        self._num_read_bytes = 0  # of texts and lists
        self.position = 0

    def unpack(self, letters: str) -> tuple[int | float | bool, ...]:
        layout = struct.Struct("<" + letters)
        start = self._advance(layout.size)
        return layout.unpack_from(self._data, start)

    def integer(self, letter: str) -> int:
        (value,) = self.unpack(letter)
        return int(value)

    def string(self) -> str:
        (text,) = self._strings(1)
        return text

    def value(self) -> MetadataValue:
        """Reads the type of a value, and then the value."""
        kind = self.integer("I")
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            (value,) = self.unpack(self._letter(kind))
            return value
        kind, num_items = self.integer("I"), self.integer("Q")
        self._count_bytes(_ITEM_BYTES * num_items)
        if kind == _STRING:
            self._check_room(_LENGTH.size * num_items)
            return self._strings(num_items)
        letter = self._letter(kind)
        self._check_room(struct.calcsize("<" + letter) * num_items)
        return list(self.unpack(f"{num_items}{letter}"))

    def _strings(self, num_items: int) -> list[str]:
        """In one loop, without calls: vocabularies and merges are hundreds of thousands."""
        data, end, position = self._data, len(self._data), self.position
        most = self.position + _MAX_BYTES - self._num_read_bytes
        texts = []
        for _ in range(num_items):
            start = position + _LENGTH.size
            if start > end:
                raise self._cut()
            (num_bytes,) = _LENGTH.unpack_from(data, position)
            position = start + num_bytes
            if position > end:
                raise self._cut()
            if position > most:
                self._count_bytes(position - self.position)
            texts.append(data[start:position])
        self._count_bytes(position - self.position)
        self.position = position
        try:
            return [text.decode() for text in texts]
        except UnicodeDecodeError:
            raise ConfigError(f"{self._name} holds a text that is not UTF-8") from None

    def _count_bytes(self, num_bytes: int) -> None:
        """Raises ConfigError for more than memory should be taken for."""
        self._num_read_bytes += num_bytes
        if self._num_read_bytes > _MAX_BYTES:
            raise ConfigError(
                f"{self._name} has more than {_MAX_BYTES >> 20} MiB of texts and lists in its "
                "head: it is damaged, or no model"
            )

    def _letter(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise ConfigError(f"{self._name} holds a value of type {kind}, which GGUF 3 has not")
        return _NUMBERS[kind]

    def _advance(self, num_bytes: int) -> int:
        self._check_room(num_bytes)
        start = self.position
        self.position += num_bytes
        return start

    def _check_room(self, num_bytes: int) -> None:
        if num_bytes > len(self._data) - self.position:
            raise self._cut()

    def _cut(self) -> ConfigError:
        return ConfigError(f"{self._name} is cut: it ends within its head; download it again")
