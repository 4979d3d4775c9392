"""Arguments that a model writes as keywords of a call in Python, told as JSON."""

from __future__ import annotations

import json
import re

from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.python_value import PythonSpan, json_of

_KEY = re.compile(r"([^\W\d]\w*)[ \t\r\n]*(?:=[ \t\r\n]*)?")


class PythonArguments:
    """Those of one call. A value is told when it is whole."""

    is_verbatim = False

    def __init__(self) -> None:
        self._num_read = 0
        self._span = PythonSpan()  # of the value that is open
        self._num_walked = 0  # characters from where its argument begins
        self.is_closed = False

    def read(self, text: str, at: int) -> tuple[str, int]:
        """JSON of what begins here, and where it ends; "" while that is open."""
        begin = skip_space(text, at)
        if self._num_read and begin < len(text) and text[begin] == ",":
            begin = skip_space(text, begin + 1)
        key = _KEY.match(text, begin)
        if begin == len(text) or (key is not None and key.end() == len(text)):
            return "", at
        if key is None or "=" not in key[0]:
            self.is_closed = True  # also by something else: what it is belongs to no argument
            return ("}" if self._num_read else "{}"), begin + (text[begin] == ")")
        end = self._span.walk(text, at + max(self._num_walked, key.end() - at))
        self._num_walked = end - at
        if not self._span.is_closed:
            return "", at
        told = self._json(key[1], text[key.end() : end])
        self._span, self._num_walked = PythonSpan(), 0
        return told, end

    def _json(self, name: str, value: str) -> str:
        begin = ", " if self._num_read else "{"
        self._num_read += 1
        return f"{begin}{json.dumps(name, ensure_ascii=False)}: {json_of(value)}"
