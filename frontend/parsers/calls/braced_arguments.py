"""Arguments in braces with bare keys, and texts between marks of their own, told as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from frontend.parsers.calls.json_span import skip_space
from frontend.parsers.calls.lark_json import json_rule
from frontend.parsers.calls.marks import possible_mark
from frontend.parsers.calls.tool_parser import CallableTool, MarkRef
from shared.errors import UnsupportedParameter

_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
_MAX_KEY = 512  # characters
_BRACKET = re.compile(r"[{}\[\]]")
_STRING = r'"(?:[^"\\]|\\.)*"'


class BracedSpan:
    """Walks over a value, in pieces, to the comma or bracket behind it."""

    def __init__(self, quote: str) -> None:
        """`quote`: the mark before and behind a text."""
        self._quote = quote
        self._outside = re.compile(rf'{re.escape(quote)}|["{{}}\[\],]')
        self._depth = 0
        self._closing = ""  # what ends the text that is open
        self.is_closed = False

    def walk(self, text: str, at: int) -> int:
        """The index of what is behind it, or so far as the text goes."""
        while at < len(text):
            if self._closing == '"':
                at = self._in_string(text, at)
                continue
            mark = self._closing or self._quote
            found = self._found(text, at)
            cut = possible_mark(text, at, mark)
            if found is None or (cut < len(text) and cut < found.start()):
                return cut
            if not self._closing and self._depth == 0 and found[0] in ",]}":
                self.is_closed = True
                return found.start()
            at = found.end()
            self._pass(found[0])
        return at

    def _found(self, text: str, at: int) -> re.Match[str] | None:
        if self._closing:
            return re.compile(re.escape(self._closing)).search(text, at)
        return self._outside.search(text, at)

    def _pass(self, what: str) -> None:
        if self._closing:
            self._closing = ""
        elif what in (self._quote, '"'):
            self._closing = what
        elif what != ",":
            self._depth += 1 if what in "[{" else -1

    def _in_string(self, text: str, at: int) -> int:
        """The index behind the next character of a string of JSON."""
        if text[at] == "\\":
            return at + 2 if at + 1 < len(text) else len(text) + 1
        if text[at] == '"':
            self._closing = ""
        return at + 1


def json_of(text: str, quote: str) -> str:
    """A value as JSON; what is none is a string of JSON."""
    told = _transcribed(text.strip(), quote)
    return told if _is_json(told) else json.dumps(text.strip(), ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _transcribed(text: str, quote: str) -> str:
    """Piece by piece: texts and bare words become strings, unless they are values of JSON."""
    mark = re.escape(quote)
    pieces = re.compile(
        rf"{mark}(?P<text>.*?){mark}|(?P<string>{_STRING})|(?P<bracket>[{{}}\[\],:])"
        rf"|(?P<word>(?:(?!{mark})[^{{}}\[\],:\"])+)",
        re.DOTALL,
    )
    told: list[str] = []
    for piece in pieces.finditer(text):
        if piece["text"] is not None:
            told.append(json.dumps(piece["text"], ensure_ascii=False))
        elif piece["word"] is not None:
            is_key = text.startswith(":", piece.end())
            told.append(_word(piece["word"].strip(), is_key=is_key))
        else:
            told.append(piece[0])
    return "".join(told)


def _word(word: str, *, is_key: bool) -> str:
    if not word:
        return ""
    known = _WORDS.get(word, word)
    return known if not is_key and _is_json(known) else json.dumps(word, ensure_ascii=False)


class BracedArguments:
    """Reads the arguments of one call, behind its brace. A value is told when it is whole."""

    is_verbatim = False

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._num_read = 0
        self._span = BracedSpan(quote)  # of the value that is open
        self._num_walked = 0  # characters from where its argument begins
        self.is_closed = False

    def read(self, text: str, at: int) -> tuple[str, int]:
        """JSON of what begins here, and where it ends; "" while that is open."""
        begin = skip_space(text, at)
        if self._num_read and begin < len(text) and text[begin] == ",":
            begin = skip_space(text, begin + 1)
        if begin == len(text):
            return "", at
        if text[begin] == "}":
            return self._closed(begin + 1)
        longest = begin + _MAX_KEY
        colon = text.find(":", begin, longest)
        bracket = _BRACKET.search(text, begin, longest if colon < 0 else colon)
        if bracket is not None or (colon < 0 and len(text) >= longest):
            return self._closed(begin)  # by something else: what it is belongs to no argument
        if colon < 0:
            return "", at
        end = self._span.walk(text, at + max(self._num_walked, colon + 1 - at))
        self._num_walked = end - at
        if not self._span.is_closed:
            return "", at
        told = self._json(text[begin:colon], text[colon + 1 : end])
        self._span, self._num_walked = BracedSpan(self._quote), 0
        return told, end

    def _closed(self, end: int) -> tuple[str, int]:
        self.is_closed = True
        return ("}" if self._num_read else "{}"), end

    def _json(self, name: str, value: str) -> str:
        begin = ", " if self._num_read else "{"
        self._num_read += 1
        key = name.strip().removeprefix(self._quote).removesuffix(self._quote).strip('"')
        return f"{begin}{json.dumps(key, ensure_ascii=False)}: {json_of(value, self._quote)}"


_OF_OBJECT = {"type", "properties", "required", "additionalProperties"}
_SCALARS = {"integer", "number", "boolean", "null"}
_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NOT_HELD = "calls of this model cannot be held to: they are not JSON"


class BracedRules:
    """The grammar, in Lark, of arguments in braces: keys in the order of the schema."""

    def __init__(self, quote: str, ref: MarkRef) -> None:
        self._quote = quote
        self._ref = ref

    def arguments(self, rule: str, tool: CallableTool) -> Iterator[str]:
        """`rule` and what it is made of. Raises UnsupportedParameter."""
        return self._object(rule, tool.schema(), tool.schema_param)

    def _object(self, rule: str, schema: dict[str, Any], param: str) -> Iterator[str]:
        """`rule_f_j` is what may stand from the property j on where none stands before, `rule_m_j`
        where one does.
        """
        _check_keys(schema, _OF_OBJECT, param)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if missing := [name for name in required if name not in properties]:
            raise UnsupportedParameter(
                param, f"requires {missing[0]!r}, which it does not describe"
            )
        yield f'{rule}: "{{" {rule}_f_0 "}}"'
        for j, (name, each) in enumerate(properties.items()):
            if not _BARE_KEY.fullmatch(name):
                raise UnsupportedParameter(param, f"names {name[:100]!r}, which {_NOT_HELD}")
            one = f"{json.dumps(f'{name}:')} {rule}_{j} {rule}_m_{j + 1}"
            is_needed = name in required
            yield f"{rule}_f_{j}: {one}" + ("" if is_needed else f" | {rule}_f_{j + 1}")
            yield f'{rule}_m_{j}: "," {one}' + ("" if is_needed else f" | {rule}_m_{j + 1}")
            yield from self._value(f"{rule}_{j}", each, f"{param}.properties.{name}")
        yield f'{rule}_f_{len(properties)}: ""'
        yield f'{rule}_m_{len(properties)}: ""'

    def _value(self, rule: str, schema: Any, param: str) -> Iterator[str]:
        if not isinstance(schema, dict) or not schema:
            yield from self._any(rule)
            return
        options = schema.get("anyOf") or schema.get("oneOf")
        kinds = schema.get("type")
        if "const" in schema or "enum" in schema:
            _check_keys(schema, {"type", "const", "enum"}, param)
            values = [schema["const"]] if "const" in schema else schema["enum"]
            yield f"{rule}: " + " | ".join(self._literal(value, param) for value in values)
        elif options:
            _check_keys(schema, {"anyOf", "oneOf"}, param)
            yield f"{rule}: " + " | ".join(f"{rule}_o_{i}" for i in range(len(options)))
            for i, option in enumerate(options):
                yield from self._value(f"{rule}_o_{i}", option, param)
        elif isinstance(kinds, list):
            yield from self._value(
                rule, {"anyOf": [{**schema, "type": kind} for kind in kinds]}, param
            )
        elif kinds == "string":
            _check_keys(schema, {"type"}, param)
            yield from self._text(rule)
        elif kinds == "array":
            _check_keys(schema, {"type", "items"}, param)
            yield f'{rule}: "[" ({rule}_i ("," {rule}_i)*)? "]"'
            yield from self._value(f"{rule}_i", schema.get("items"), param)
        elif kinds == "object" and schema.get("properties"):
            yield from self._object(rule, schema, param)
        elif kinds in _SCALARS:
            yield f"{rule}: %json {json_rule(schema)}"
        elif kinds == "object":
            _check_keys(schema, {"type"}, param)
            yield f"{rule}: {self._members(f'{rule}_v')}"
            yield from self._any(f"{rule}_v")
        else:
            odd = sorted(schema.keys() - {"type"}) or ["type"]
            raise UnsupportedParameter(param, f"holds {odd[0]!r}, which {_NOT_HELD}")

    def _any(self, rule: str) -> Iterator[str]:
        """Any value."""
        yield from self._text(f"{rule}_t")
        yield f"{rule}_s: %json {json_rule({'type': ['number', 'boolean', 'null']})}"
        some = f'"[" ({rule} ("," {rule})*)? "]" | {self._members(rule)}'
        yield f"{rule}: {rule}_t | {rule}_s | {some}"

    def _members(self, value: str) -> str:
        member = rf'/[A-Za-z_][A-Za-z0-9_-]*/ ":" {value}'
        return f'"{{" ({member} ("," {member})*)? "}}"'

    def _text(self, rule: str) -> Iterator[str]:
        quote = self._ref(self._quote)
        if quote == json.dumps(self._quote):
            yield f"{rule}: {quote} {rule}_q"
            yield f"{rule}_q[suffix={quote}]: FREE"
        else:  # a token, which free text cannot hold
            yield f"{rule}: {quote} FREE {quote}"

    def _literal(self, value: Any, param: str) -> str:
        if isinstance(value, str) and self._quote not in value:
            quote = self._ref(self._quote)
            text = f" {json.dumps(value, ensure_ascii=False)} " if value else " "
            return f"({quote}{text}{quote})"
        if isinstance(value, str | dict | list):
            raise UnsupportedParameter(param, f"wants {str(value)[:100]!r}, which {_NOT_HELD}")
        return json.dumps(json.dumps(value))


def _check_keys(schema: dict[str, Any], known: set[str], param: str) -> None:
    """Raises UnsupportedParameter."""
    if odd := sorted(schema.keys() - known):
        raise UnsupportedParameter(param, f"holds {odd[0]!r}, which {_NOT_HELD}")
