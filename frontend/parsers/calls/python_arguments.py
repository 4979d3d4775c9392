"""Arguments that a model writes as keywords of a call in Python, told as JSON."""

from __future__ import annotations

import json
import re

import msgspec

from frontend.parsers.calls.json_span import skip_space

_OUTSIDE = re.compile(r"""['"{}\[\](),]""")
_TOKEN = re.compile(
    r"""\s+|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z_]+)"""
    r"""|(?P<bracket>[()])|-?[0-9][0-9.eE+-]*|[\[\]{}:,]""",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<one>.))",
    re.DOTALL,
)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ONE = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_LAST_CHAR = 0x10FFFF


class PythonSpan:
    """Walks over a value, in pieces, to the comma or bracket behind it."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""  # of the string that is open
        self._escaped = False
        self.is_closed = False

    def walk(self, text: str, at: int) -> int:
        """The index of what is behind it, or of the end of the text."""
        while at < len(text):
            if self._quote:
                at = self._in_string(text, at)
                continue
            match = _OUTSIDE.search(text, at)
            if match is None:
                return len(text)
            if self._depth == 0 and match[0] in ",)]}":
                self.is_closed = True
                return match.start()
            at = match.end()
            if match[0] in "'\"":
                self._quote = match[0]
            elif match[0] != ",":
                self._depth += 1 if match[0] in "([{" else -1
        return at

    def _in_string(self, text: str, at: int) -> int:
        """The index behind the next character of it."""
        char = text[at]
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == self._quote:
            self._quote = ""
        return at + 1


def json_of(text: str) -> str:
    """A literal of Python or JSON as JSON; what is neither is a string of JSON."""
    text = text.strip()
    for candidate in (text, _transcribed(text)):
        if candidate is not None and _is_json(candidate):
            return candidate
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _transcribed(text: str) -> str | None:
    """Word by word; None for words that JSON has nothing for."""
    at, told = 0, ""
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return None
        at, word = match.end(), match[0]
        if match["text"]:
            word = json.dumps(_said(word[1:-1]), ensure_ascii=False)
        elif match["word"]:
            if (word := _WORDS.get(word, word)) not in ("true", "false", "null"):
                return None
        elif match["bracket"]:
            word = "[" if word == "(" else "]"
        if word in ("]", "}"):
            told = told.rstrip().removesuffix(",")
        told += word
    return told


def _said(text: str) -> str:
    """What a string says, by its source between the quotes."""
    said = _ESCAPE.sub(_char, text)
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _char(match: re.Match[str]) -> str:
    if match["one"]:
        return _ONE.get(match["one"], match[0])
    code = int(match["x"] or match["u"] or match["U"], 16)
    return chr(code) if code <= _LAST_CHAR else match[0]


_KEY = re.compile(r"([^\W\d]\w*)[ \t\r\n]*(?:=[ \t\r\n]*)?")


class PythonArguments:
    """Reads the arguments of one call. A value is told when it is whole."""

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
