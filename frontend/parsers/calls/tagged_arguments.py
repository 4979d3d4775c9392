"""Arguments that a model writes in tags, one for each, told as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

import msgspec

from frontend.parsers.calls.json_span import skip_space
from shared.protocol.reply import ParamKind

FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAM = "<parameter="
PARAM_END = "</parameter>"
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class TaggedArguments:
    """Those of one call. A value is told when it is whole."""

    is_verbatim = False

    def __init__(self, kinds: Mapping[str, ParamKind]) -> None:
        """`kinds`: of the parameters that take more than text."""
        self._kinds = kinds
        self._num_read = 0
        self.is_closed = False

    def read(self, text: str, at: int) -> tuple[str, int]:
        """JSON of what begins here, and where it ends; "" while that is open."""
        begin = skip_space(text, at)
        if text.startswith(PARAM, begin):
            name_end = text.find(">", begin)
            end = text.find(PARAM_END, begin)
            if end < 0:
                return "", at
            name = text[begin + len(PARAM) : name_end]
            told = self._json(name, _trimmed(text[name_end + 1 : end]))
            return told, end + len(PARAM_END)
        if PARAM.startswith(text[begin:]) or (
            FUNCTION_END.startswith(text[begin:]) and len(text) - begin < len(FUNCTION_END)
        ):
            return "", at
        self.is_closed = True  # also by something else: what it is belongs to no argument
        end = begin + len(FUNCTION_END) if text.startswith(FUNCTION_END, begin) else begin
        return ("}" if self._num_read else "{}"), end

    def _json(self, name: str, value: str) -> str:
        begin = ", " if self._num_read else "{"
        self._num_read += 1
        return f"{begin}{json.dumps(name, ensure_ascii=False)}: {self._value(name, value)}"

    def _value(self, name: str, value: str) -> str:
        kind = self._kinds.get(name)
        if kind is ParamKind.TEXT_OR_NULL and value == "null":
            return value
        if kind is ParamKind.JSON:
            word = value.strip()
            word = _PYTHON_WORDS.get(word, word)
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                msgspec.json.decode(word)
                return word  # else the model wrote something that is not JSON: it stays text
        return json.dumps(value, ensure_ascii=False)


def _trimmed(value: str) -> str:
    """Without the line ends that set it apart from its tags."""
    value = value.removeprefix("\n")
    return value.removesuffix("\n")
