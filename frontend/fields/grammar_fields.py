"""The fields that constrain the output, of OpenAI's, vLLM's and SGLang's APIs: one grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from tokenizers import Tokenizer

from frontend.fields.json_schema import SchemaReader
from frontend.fields.regex_check import check_regex
from frontend.fields.structural_tag import tag_grammar
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.grammar import grammar_engine
from shared.protocol.sampling import Grammar, GrammarKind

MAX_GRAMMAR_BYTES = 64 * 1024  # it travels inside the request, beside a prompt of 256 KiB
MAX_ALTERNATIVES = 1500
MAX_WHITESPACE_CHARS = 100
ANY_OBJECT = '{"type":"object"}'
_NAME_CHARS = 64
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')


class GrammarFields(msgspec.Struct, omit_defaults=True):
    """Fields of a body of which at most one is given; None means a free output."""

    response_format: Any = None  # OpenAI
    structured_outputs: Any = None  # vLLM
    guided_json: Any = None  # older vLLM
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_whitespace_pattern: Any = None
    json_schema: Any = None  # SGLang
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    grammar: Any = None  # llama.cpp, whose GBNF it is


class WantedGrammar(NamedTuple):
    """What a body asks for, and the field that does."""

    grammar: Grammar
    param: str
    mark_ids: tuple[int, ...] = ()  # special tokens that are text of the output


def resolve_grammar(
    fields: GrammarFields, tokenizer: Tokenizer | None = None
) -> WantedGrammar | None:
    """None when the output is free. Raises InvalidRequest; the grammar is not compiled yet.

    `tokenizer`: whose tokens the marks of a structural tag may be.
    """
    wanted = list(_wanted(fields, tokenizer))
    if len(wanted) > 1:
        raise InvalidRequest(
            f"'{wanted[1].param}' and '{wanted[0].param}' exclude each other",
            param=wanted[1].param,
        )
    return _checked_size(wanted[0]) if wanted else None


def _checked_size(wanted: WantedGrammar) -> WantedGrammar:
    num_bytes = len(wanted.grammar.text.encode())
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(
            f"'{wanted.param}' has {num_bytes} bytes, at most {MAX_GRAMMAR_BYTES}",
            param=wanted.param,
        )
    return wanted


def resolve_text_format(value: Any) -> WantedGrammar | None:
    """`text.format` of OpenAI's Responses: a response format without the inner object.

    Raises InvalidRequest.
    """
    if value is None:
        return None
    param = "text.format"
    kind = _typed(value, dict, param).get("type")
    if kind == "structural_tag":
        raise UnsupportedParameter(f"{param}.type", "is 'structural_tag': chats take it")
    if kind != "json_schema":
        wanted = list(_response_format(value, param))
        return wanted[0] if wanted else None
    inner = {key: each for key, each in value.items() if key != "type"}
    return _checked_size(_named_schema(inner, param))


def _wanted(fields: GrammarFields, tokenizer: Tokenizer | None) -> Iterator[WantedGrammar]:
    if fields.response_format is not None:
        yield from _response_format(fields.response_format, "response_format", tokenizer)
    if fields.structured_outputs is not None:
        yield from _structured_outputs(fields.structured_outputs, tokenizer)
    if fields.structural_tag not in (None, ""):
        yield _structural_tag(fields.structural_tag, "structural_tag", tokenizer)
    if fields.guided_json is not None:
        space = _whitespace(fields.guided_whitespace_pattern, "guided_whitespace_pattern")
        yield _schema(fields.guided_json, "guided_json", whitespace=space)
    if fields.json_schema is not None:
        yield _schema(fields.json_schema, "json_schema")
    for name in ("guided_regex", "regex"):
        if (regex := getattr(fields, name)) is not None:
            yield _regex(regex, name)
    if fields.guided_choice is not None:
        yield _choice(fields.guided_choice, "guided_choice")
    for name in ("guided_grammar", "ebnf", "grammar"):
        if (text := getattr(fields, name)) is not None and (text or name != "grammar"):
            yield _ebnf(text, name)  # an empty one of llama.cpp's is none


def _response_format(
    value: Any, name: str, tokenizer: Tokenizer | None = None
) -> Iterator[WantedGrammar]:
    match _typed(value, dict, name).get("type"):
        case "text":
            _only(value, {"type"}, name)
        case "json_object":
            _only(value, {"type", "schema"}, name)
            if value.get("schema") not in (None, {}):  # as llama.cpp has it
                yield _schema(value["schema"], f"{name}.schema")
            else:
                yield WantedGrammar(_grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT), name)
        case "json_schema":
            _only(value, {"type", "json_schema"}, name)
            yield _named_schema(value.get("json_schema"), f"{name}.json_schema")
        case "structural_tag":
            yield _structural_tag(value, name, tokenizer)
        case other:
            raise InvalidRequest(
                f"'{name}.type' is {json.dumps(other)[:100]}, must be text, json_object, "
                "json_schema or structural_tag",
                param=f"{name}.type",
            )


def _named_schema(value: Any, param: str) -> WantedGrammar:
    _only(_typed(value, dict, param), {"name", "description", "schema", "strict"}, param)
    name = value.get("name")
    if name is not None and len(_typed(name, str, f"{param}.name")) > _NAME_CHARS:
        raise InvalidRequest(
            f"'{param}.name' has {len(name)} characters, at most {_NAME_CHARS}",
            param=f"{param}.name",
        )
    strict = _typed(value.get("strict") or False, bool, f"{param}.strict")
    return _schema(value.get("schema"), f"{param}.schema", is_closed=strict)


def _structural_tag(value: Any, param: str, tokenizer: Tokenizer | None) -> WantedGrammar:
    tag = tag_grammar(value, param, tokenizer)
    return WantedGrammar(_grammar(GrammarKind.LARK, tag.text), param, tag.mark_ids)


def _structured_outputs(value: Any, tokenizer: Tokenizer | None) -> Iterator[WantedGrammar]:
    name = "structured_outputs"
    given = {key: each for key, each in _typed(value, dict, name).items() if each is not None}
    kinds = {"json", "regex", "choice", "grammar", "json_object", "structural_tag"}
    options = {"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}
    _only(given, kinds | options | {"disable_fallback"}, name)
    space = _whitespace(given.get("whitespace_pattern"), f"{name}.whitespace_pattern")
    if _typed(given.get("disable_any_whitespace", False), bool, f"{name}.disable_any_whitespace"):
        space = ""
    param = f"{name}.disable_additional_properties"
    is_closed = _typed(given.get("disable_additional_properties", False), bool, param)
    if "json" in given:
        yield _schema(given["json"], f"{name}.json", whitespace=space, is_closed=is_closed)
    if _typed(given.get("json_object", False), bool, f"{name}.json_object"):
        grammar = _grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT, space)
        yield WantedGrammar(grammar, f"{name}.json_object")
    if "regex" in given:
        yield _regex(given["regex"], f"{name}.regex")
    if "choice" in given:
        yield _choice(given["choice"], f"{name}.choice")
    if "grammar" in given:
        yield _ebnf(given["grammar"], f"{name}.grammar")
    if "structural_tag" in given:
        yield _structural_tag(given["structural_tag"], f"{name}.structural_tag", tokenizer)


def _schema(
    value: Any, param: str, *, whitespace: str | None = None, is_closed: bool = False
) -> WantedGrammar:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise InvalidRequest(f"'{param}' is not valid JSON: {exc}", param=param) from exc
    _typed(value, (dict, bool), param)
    if value is False:
        raise InvalidRequest(f"'{param}' is false: no output can satisfy it", param=param)
    schema = {} if value is True else SchemaReader(param, is_closed=is_closed).read(value)
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return WantedGrammar(_grammar(GrammarKind.JSON_SCHEMA, text, whitespace), param)


def _regex(value: Any, param: str) -> WantedGrammar:
    check_regex(_typed(value, str, param), param)
    return WantedGrammar(_grammar(GrammarKind.REGEX, value), param)


def _choice(value: Any, param: str) -> WantedGrammar:
    choices = _typed(value, list, param)
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise InvalidRequest(f"'{param}' must be a list of texts, none empty", param=param)
    if len(choices) > MAX_ALTERNATIVES:
        raise InvalidRequest(
            f"'{param}' has {len(choices)} choices, at most {MAX_ALTERNATIVES}", param=param
        )
    text = json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False)
    return WantedGrammar(_grammar(GrammarKind.CHOICE, text), param)


def _ebnf(value: Any, param: str) -> WantedGrammar:
    if not _typed(value, str, param).strip():
        raise InvalidRequest(f"'{param}' is empty", param=param)
    for directive in ("%llguidance", "%json", "%regex", "%import"):
        if directive in value:
            raise UnsupportedParameter(param, f"holds {directive}, which is not supported")
    check_regex(_QUOTED.sub('"', value), param)
    return WantedGrammar(_grammar(GrammarKind.EBNF, value), param)


def _whitespace(value: Any, param: str) -> str | None:
    if value is None:
        return None
    if len(_typed(value, str, param)) > MAX_WHITESPACE_CHARS:
        raise InvalidRequest(
            f"'{param}' has {len(value)} characters, at most {MAX_WHITESPACE_CHARS}", param=param
        )
    check_regex(value, param)
    return str(value)


def _grammar(kind: GrammarKind, text: str, whitespace: str | None = None) -> Grammar:
    return Grammar(kind, text, grammar_engine(), whitespace)


def _typed(value: Any, types: Any, param: str) -> Any:
    if isinstance(value, types):
        return value
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    wanted = " or ".join(names[each] for each in (types if isinstance(types, tuple) else (types,)))
    code = "missing_field" if value is None else "invalid_type"
    raise InvalidRequest(f"'{param}' must be {wanted}", param=param, code=code)


def _only(value: dict[str, Any], known: set[str], param: str) -> None:
    for key, each in value.items():
        if key not in known and each is not None:
            raise UnsupportedParameter(f"{param}.{key[:100]}")
