"""`structural_tag`: outputs that are held to forms between marks, as xgrammar, vLLM and SGLang ask
for them, as a grammar in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec
from tokenizers import Tokenizer

from frontend.fields.json_schema import SchemaReader
from frontend.fields.regex_check import check_regex
from frontend.parsers.calls.lark_json import json_rule
from shared.errors import InvalidRequest, UnsupportedParameter

MAX_FORMATS = 500
MAX_DEPTH = 16
_HEAD = "%llguidance {}"
ANY_TEXT = r"/(.|\n)*/"
_SLASH = re.compile(r"\\.|/", re.DOTALL)


class TokenMarks:
    """The added tokens of a vocabulary: free text cannot hold them, so that a mark is exact."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        self.named: dict[str, int] = {}  # those that texts have had in them

    @classmethod
    def of(cls, tokenizer: Tokenizer | None) -> Self:
        """None: texts are spelled."""
        added = {} if tokenizer is None else tokenizer.get_added_tokens_decoder()
        return cls({each.content: token_id for token_id, each in added.items()})

    def pieces(self, text: str) -> list[str]:
        """Texts and marks, one behind the other; none of "". Each is in Lark."""
        found = [mark for mark in self._ids if mark.strip() and mark in text]
        parts = [text]
        if found:
            parts = re.split(f"({'|'.join(map(re.escape, sorted(found, key=len)[::-1]))})", text)
        self.named |= {part: self._ids[part] for part in parts if part in found}
        return [
            f"<[{self._ids[part]}]>" if part in found else json.dumps(part)
            for part in parts
            if part
        ]


class TagGrammar(NamedTuple):
    """A grammar, and the tokens that are visible text in its outputs."""

    text: str
    mark_ids: tuple[int, ...]


def tag_grammar(value: Any, param: str, tokenizer: Tokenizer | None) -> TagGrammar:
    """`value`: the newer form, with a `format`, or the older one, with `structures`; or its JSON.

    Raises InvalidRequest.
    """
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise InvalidRequest(f"'{param}' is not valid JSON: {exc}", param=param) from exc
    tag = _object(value, param)
    writer = _TagWriter(TokenMarks.of(tokenizer))
    if tag.get("type", "structural_tag") != "structural_tag":
        raise InvalidRequest(
            f"'{param}.type' is {_short(tag['type'])}, must be structural_tag",
            param=f"{param}.type",
        )
    if "structures" in tag:
        _only(tag, {"type", "structures", "triggers"}, param)
        start = writer.triggered(_tags_of(tag, param), param, has_older_form=True)
    else:
        _only(tag, {"type", "format"}, param)
        start = writer.expression(tag.get("format"), f"{param}.format", is_last=True)
    text = "\n".join([_HEAD, f"start: {start}", f"TEXT: {ANY_TEXT}", *writer.rules]) + "\n"
    return TagGrammar(text, tuple(writer.marks.named.values()))


def tag_rules(grammar: str, name: str, but: str) -> list[str]:
    """The rules of such a grammar within another one, where it is called `name`, and its free text
    has no `but` in it; "": it may have any.
    """
    _, start, _, *rules = grammar.removesuffix("\n").split("\n")
    text = _without(ANY_TEXT, [but]) if but else ANY_TEXT
    return [name + start.removeprefix("start"), f"TEXT: {text}", *rules]


def _without(terminal: str, texts: Sequence[str]) -> str:
    """Where none of these comes; in Lark."""
    found = "|".join("".join(rf"\x{{{ord(each):x}}}" for each in text) for text in texts)
    return rf"{terminal} & ~/(.|\n)*({found})(.|\n)*/"


def _tags_of(tag: dict[str, Any], param: str) -> dict[str, Any]:
    """The older form in the words of the newer one."""
    tags = []
    for i, each in enumerate(_list(tag.get("structures"), f"{param}.structures")):
        where = f"{param}.structures[{i}]"
        structure = _object(each, where)
        _only(structure, {"begin", "schema", "structural_tag_schema", "end"}, where)
        schema = structure.get("schema", structure.get("structural_tag_schema", {}))
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({**structure, "type": "tag", "content": content})
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _TagWriter:
    """Writes rules, each once, as formats are read."""

    def __init__(self, marks: TokenMarks) -> None:
        self.marks = marks
        self.rules: list[str] = []
        self._num_names = 0
        self._depth = 0

    def expression(self, value: Any, param: str, *, is_last: bool) -> str:
        """`is_last`: nothing follows, so that free text may go on. Raises InvalidRequest."""
        form = _object(value, param)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidRequest(f"'{param}' is more than {MAX_DEPTH} levels deep", param=param)
        expression = self._expression(form, param, is_last=is_last)
        self._depth -= 1
        return expression

    def _expression(self, form: dict[str, Any], param: str, *, is_last: bool) -> str:
        kind = form.get("type")
        match kind:
            case "const_string":
                _only(form, {"type", "value"}, param)
                return self._text(_string(form.get("value"), f"{param}.value"))
            case "json_schema":
                return self._json(form, param)
            case "any_text" | "regex":
                if not is_last:
                    raise _unsupported(param, kind, "where something follows that is no tag's end")
                return self._free(form, param)
            case "sequence":
                _only(form, {"type", "elements"}, param)
                elements = _list(form.get("elements"), f"{param}.elements")
                return " ".join(
                    self._group(each, f"{param}.elements[{i}]", is_last and i == len(elements) - 1)
                    for i, each in enumerate(elements)
                )
            case "or":
                _only(form, {"type", "elements"}, param)
                return self._choice(
                    self.expression(each, f"{param}.elements[{i}]", is_last=is_last)
                    for i, each in enumerate(_list(form.get("elements"), f"{param}.elements"))
                )
            case "optional" | "star" | "plus":
                _only(form, {"type", "content"}, param)
                inner = self._group(form.get("content"), f"{param}.content", is_last=False)
                return inner + {"optional": "?", "star": "*", "plus": "+"}[kind]
            case "tag":
                return self._tag(form, param)
            case "triggered_tags":
                if not is_last:
                    raise _unsupported(param, kind, "where something follows")
                return self.triggered(form, param)
            case "tags_with_separator":
                return self._separated(form, param)
            case str():
                raise _unsupported(param, kind)
            case _:
                raise InvalidRequest(f"'{param}.type' is required", param=f"{param}.type")

    def triggered(self, form: dict[str, Any], param: str, *, has_older_form: bool = False) -> str:
        """Free text, in which each trigger begins one of its tags."""
        flags = {"at_least_one", "stop_after_first"}
        _only(form, {"type", "triggers", "tags", "excludes", *flags}, param)
        free = self._text_but(form, param)
        tags_param = f"{param}.{'structures' if has_older_form else 'tags'}"
        tags = [
            _object(each, f"{tags_param}[{i}]")
            for i, each in enumerate(_list(form.get("tags"), tags_param))
        ]
        triggers = self._triggers(form, param)
        rests: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        whole = []
        for i, tag in enumerate(tags):
            where = f"{tags_param}[{i}]"
            begin = _string(tag.get("begin"), f"{where}.begin")
            trigger = next((each for each in triggers if begin.startswith(each)), None)
            if trigger is None:
                raise InvalidRequest(
                    f"'{where}.begin' is {_short(begin)}, which begins with none of the triggers",
                    param=f"{where}.begin",
                )
            inner = self._rule(self._inside(tag, where))
            rests[trigger].append(f"{self._text(begin[len(trigger) :])} {inner}")
            whole.append(f"{self._text(begin)} {inner}")
        name = self._name()
        goes_on = "" if _flag(form, "stop_after_first", param) else f" {name}"
        parts = [
            f"{self._lead(trigger, free)} {self._choice(rest)}{goes_on}"
            for trigger, rest in rests.items()
            if rest
        ]
        self.rules.append(f"{name}: " + " | ".join([free, *parts]))
        if _flag(form, "at_least_one", param):
            return f"{self._choice(whole)}{goes_on}"
        return name

    def _triggers(self, form: dict[str, Any], param: str) -> list[str]:
        where = f"{param}.triggers"
        triggers = [_string(each, where) for each in _list(form.get("triggers"), where)]
        for trigger in triggers:
            pieces = self.marks.pieces(trigger)
            if not trigger or any(
                other is not trigger and other.startswith(trigger) for other in triggers
            ):
                raise InvalidRequest(
                    f"'{where}' holds {_short(trigger)}, with which another one begins", param=where
                )
            if len(pieces) > 1:
                raise UnsupportedParameter(
                    where,
                    f"holds {_short(trigger)}, which has a token of the vocabulary and more: name "
                    "the token alone",
                )
        return triggers

    def _lead(self, trigger: str, free: str) -> str:
        """Free text up to a trigger, with it."""
        [piece] = self.marks.pieces(trigger)
        name = self._name()
        is_token = piece != json.dumps(trigger)
        self.rules.append(
            f"{name}: {free} {piece}" if is_token else f"{name}[suffix={piece}]: {free}"
        )
        return name

    def _separated(self, form: dict[str, Any], param: str) -> str:
        _only(form, {"type", "tags", "separator", "at_least_one", "stop_after_first"}, param)
        tags = _list(form.get("tags"), f"{param}.tags")
        one = self._rule(
            self._choice(
                self.expression(each, f"{param}.tags[{i}]", is_last=False)
                for i, each in enumerate(tags)
            )
        )
        separator = self._text(_string(form.get("separator"), f"{param}.separator"))
        stops = _flag(form, "stop_after_first", param)
        some = one if stops else f"{one} ({separator} {one})*"
        return some if _flag(form, "at_least_one", param) else f"({some})?"

    def _tag(self, form: dict[str, Any], param: str) -> str:
        begin = self._text(_string(form.get("begin"), f"{param}.begin"))
        return f"{begin} {self._inside(form, param)}"

    def _inside(self, form: dict[str, Any], param: str) -> str:
        """What follows the begin of a tag."""
        _only(form, {"type", "begin", "content", "schema", "structural_tag_schema", "end"}, param)
        given = form.get("end")
        several = _list(given, f"{param}.end") if isinstance(given, list) else [given]
        ends = [_string(end, f"{param}.end") for end in several]
        content = _object(form.get("content"), f"{param}.content")
        if content.get("type") in ("any_text", "regex"):
            return self._free_up_to(content, ends, param)
        inner = self._group(content, f"{param}.content", is_last=False)
        return f"{inner} {self._choice(self._text(end) for end in ends)}"

    def _free_up_to(self, content: dict[str, Any], ends: Sequence[str], param: str) -> str:
        """What ends where one of the ends first comes."""
        free = self._free(content, f"{param}.content")
        pieces = [self.marks.pieces(end) for end in ends]
        if all(each and each[0].startswith("<[") for each in pieces):
            return f"{free} {self._choice(' '.join(each) for each in pieces)}"
        if len(ends) > 1 or len(pieces[0]) != 1:
            raise UnsupportedParameter(
                f"{param}.end",
                "is not one text, or begins with a token of the vocabulary in part: free text has "
                "one end",
            )
        name = self._name()
        self.rules.append(f"{name}[suffix={pieces[0][0]}]: {free}")
        return name

    def _free(self, form: dict[str, Any], param: str) -> str:
        """A terminal."""
        if form["type"] == "any_text":
            _only(form, {"type", "excludes"}, param)
            return self._text_but(form, param)
        _only(form, {"type", "pattern"}, param)
        pattern = _string(form.get("pattern"), f"{param}.pattern")
        check_regex(pattern, f"{param}.pattern")
        name = self._name().upper()
        self.rules.append(f"{name}: /{_in_slashes(pattern, f'{param}.pattern')}/")
        return name

    def _text_but(self, form: dict[str, Any], param: str) -> str:
        """A terminal: free text in which none of `excludes` comes."""
        if not form.get("excludes"):
            return "TEXT"
        where = f"{param}.excludes"
        texts = [_string(each, where) for each in _list(form["excludes"], where)]
        if "" in texts:
            raise InvalidRequest(f"'{where}' holds an empty text", param=where)
        name = self._name().upper()
        self.rules.append(f"{name}: {_without('TEXT', texts)}")
        return name

    def _json(self, form: dict[str, Any], param: str) -> str:
        _only(form, {"type", "json_schema", "style"}, param)
        if form.get("style", "json") != "json":
            raise UnsupportedParameter(f"{param}.style", f"is {_short(form['style'])}")
        schema, where = form.get("json_schema"), f"{param}.json_schema"
        if not isinstance(schema, dict | bool) or schema is False:
            raise InvalidRequest(f"'{where}' must be an object or true", param=where)
        read = {} if schema is True else SchemaReader(where).read(schema)
        name = self._name()
        self.rules.append(f"{name}: %json {json_rule(read)}")
        return name

    def _group(self, value: Any, param: str, is_last: bool) -> str:
        return self._rule(self.expression(value, param, is_last=is_last))

    def _choice(self, options: Iterator[str] | Sequence[str]) -> str:
        return self._rule(" | ".join(option.strip() or '""' for option in options))

    def _text(self, text: str) -> str:
        return " ".join(self.marks.pieces(text)) or '""'

    def _rule(self, expression: str) -> str:
        name = self._name()
        self.rules.append(f"{name}: {expression}")
        return name

    def _name(self) -> str:
        self._num_names += 1
        if self._num_names > 4 * MAX_FORMATS:
            raise InvalidRequest(f"a structural tag has more than {MAX_FORMATS} formats")
        return f"r{self._num_names}"


def _in_slashes(pattern: str, param: str) -> str:
    """A regular expression as Lark has it. Raises InvalidRequest."""
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise InvalidRequest(f"'{param}' ends with a backslash", param=param)
    told = _SLASH.sub(lambda match: r"\/" if match[0] == "/" else match[0], pattern)
    return f"(?:{told})".replace("\n", r"\n").replace("\r", r"\r")


def _unsupported(param: str, kind: str, where: str = "") -> UnsupportedParameter:
    words = f"is {_short(kind)}" + (f", which is not supported {where}" if where else "")
    return UnsupportedParameter(f"{param}.type", words if where else f"{words}: not supported")


def _object(value: Any, param: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    code = "missing_field" if value is None else "invalid_type"
    raise InvalidRequest(f"'{param}' must be an object", param=param, code=code)


def _list(value: Any, param: str) -> list[Any]:
    if isinstance(value, list) and 0 < len(value) <= MAX_FORMATS:
        return value
    raise InvalidRequest(
        f"'{param}' must be a list of 1 to {MAX_FORMATS}",
        param=param,
        code="missing_field" if value is None else "invalid_type",
    )


def _string(value: Any, param: str) -> str:
    if isinstance(value, str):
        return value
    code = "missing_field" if value is None else "invalid_type"
    raise InvalidRequest(f"'{param}' must be text", param=param, code=code)


def _flag(form: dict[str, Any], name: str, param: str) -> bool:
    value = form.get(name) or False
    if not isinstance(value, bool):
        raise InvalidRequest(
            f"'{param}.{name}' must be true or false", param=f"{param}.{name}", code="invalid_type"
        )
    return value


def _only(form: dict[str, Any], known: set[str], param: str) -> None:
    for key, each in form.items():
        if key not in known and each not in (None, False, [], ""):
            raise UnsupportedParameter(f"{param}.{key[:100]}")


def _short(value: Any) -> str:
    return json.dumps(value)[:100]
