"""Fields that constrain the output: each shape, each bound, and what the wire carries of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.fields.grammar_fields import GrammarFields, resolve_grammar
from frontend.fields.regex_check import expanded_len
from shared.errors import InvalidRequest
from shared.grammar import grammar_engine
from shared.protocol.sampling import Grammar, GrammarKind

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SCHEMA_TEXT = json.dumps(SCHEMA, separators=(",", ":"))
CLOSED_TEXT = json.dumps({**SCHEMA, "additionalProperties": False}, separators=(",", ":"))
EBNF = 'root ::= "a" | "b"'


def grammar_of(**fields: Any) -> Grammar | None:
    wanted = resolve_grammar(GrammarFields(**fields))
    return None if wanted is None else wanted.grammar


def schema_of(schema: Any, **fields: Any) -> Any:
    grammar = grammar_of(json_schema=schema, **fields)
    assert grammar is not None
    return json.loads(grammar.text)


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        grammar_of(**fields)
    assert caught.value.status_code == 400
    return caught.value


def named(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("fields", "kind", "text", "whitespace"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}', None),
        (
            {"response_format": {"type": "json_object", "schema": {}}},
            "json_schema",
            '{"type":"object"}',
            None,
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "json_schema",
            SCHEMA_TEXT,
            None,
        ),
        ({"response_format": named()}, "json_schema", SCHEMA_TEXT, None),
        ({"response_format": named(strict=False)}, "json_schema", SCHEMA_TEXT, None),
        ({"response_format": named(strict=True)}, "json_schema", CLOSED_TEXT, None),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA_TEXT, None),
        ({"structured_outputs": {"json": SCHEMA_TEXT}}, "json_schema", SCHEMA_TEXT, None),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            "json_schema",
            SCHEMA_TEXT,
            "",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
            "json_schema",
            CLOSED_TEXT,
            None,
        ),
        (
            {"structured_outputs": {"json_object": True, "whitespace_pattern": " ?"}},
            "json_schema",
            '{"type":"object"}',
            " ?",
        ),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", None),
        ({"structured_outputs": {"choice": ["a", "b", "a"]}}, "choice", '["a", "b"]', None),
        ({"structured_outputs": {"grammar": EBNF}}, "ebnf", EBNF, None),
        ({"grammar": EBNF}, "ebnf", EBNF, None),
        ({"grammar": "", "ebnf": EBNF}, "ebnf", EBNF, None),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA_TEXT, None),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": r"\n"},
            "json_schema",
            SCHEMA_TEXT,
            r"\n",
        ),
        ({"guided_regex": "[0-9]"}, "regex", "[0-9]", None),
        ({"guided_choice": ["yes", "日本"]}, "choice", '["yes", "日本"]', None),
        ({"guided_grammar": EBNF}, "ebnf", EBNF, None),
        ({"json_schema": SCHEMA_TEXT}, "json_schema", SCHEMA_TEXT, None),
        ({"json_schema": True}, "json_schema", "{}", None),
        ({"regex": "x"}, "regex", "x", None),
        ({"ebnf": EBNF}, "ebnf", EBNF, None),
    ],
)
def test_each_shape_is_one_grammar(
    fields: dict[str, Any], kind: str, text: str, whitespace: str | None
) -> None:
    assert grammar_of(**fields) == Grammar(GrammarKind(kind), text, grammar_engine(), whitespace)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False}},
    ],
)
def test_a_free_output_has_no_grammar(fields: dict[str, Any]) -> None:
    assert grammar_of(**fields) is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"regex": "a", "ebnf": EBNF}, "ebnf", "exclude each other"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", ""),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": {}}, "response_format.type", "null"),
        ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema", ""),
        ({"response_format": {"type": "json_object", "schema": 0}}, "response_format.schema", ""),
        ({"response_format": {"type": "json_object", "other": {}}}, "response_format.other", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "must be an object",
        ),
        ({"response_format": named(strict="yes")}, "response_format.json_schema.strict", ""),
        ({"response_format": named(name="n" * 65)}, "response_format.json_schema.name", "65"),
        ({"response_format": named(other=1)}, "response_format.json_schema.other", ""),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", ""),
        (
            {"structural_tag": {"format": {"type": "token"}}},
            "structural_tag.format.type",
            "'structural_tag.format.type' is \"token\": not supported",
        ),
        ({"structured_outputs": 5}, "structured_outputs", "object"),
        ({"json_schema": "{"}, "json_schema", "not valid JSON"),
        ({"json_schema": False}, "json_schema", "false"),
        ({"json_schema": [1]}, "json_schema", "must be an object"),
        ({"regex": 5}, "regex", "text"),
        ({"regex": "(a{1000}){1000}"}, "regex", "1000000"),
        ({"regex": "((a{99}){99}){99}"}, "regex", "970299"),
        ({"regex": "(" * 51 + ")" * 51}, "regex", "nested"),
        ({"regex": "a" * 20_000}, "regex", "16384"),
        ({"guided_choice": []}, "guided_choice", "list of texts"),
        ({"guided_choice": ["a", 5]}, "guided_choice", "list of texts"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "none empty"),
        ({"guided_choice": [str(i) for i in range(1501)]}, "guided_choice", "1501"),
        ({"guided_choice": ["a" * 70_000]}, "guided_choice", "65536"),
        ({"ebnf": " "}, "ebnf", "empty"),
        ({"ebnf": "start: %json {}"}, "ebnf", "%json"),
        ({"ebnf": 'root ::= ("a"{200}){200}'}, "ebnf", "40009"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": "x" * 101}},
            "structured_outputs.whitespace_pattern",
            "101",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert words in error.message


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {"type": "string"}}, "/not"),
        (
            {"properties": {"a": {"type": "array", "uniqueItems": True}}},
            "/properties/a/uniqueItems",
        ),
        ({"items": {"if": {}, "then": {}}}, "/items/if"),
        ({"unevaluatedProperties": False}, "/unevaluatedProperties"),
        ({"contains": {"type": "string"}}, "/contains"),
        ({"propertyNames": {"pattern": "a"}}, "/propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "/dependentRequired"),
        ({"$ref": "https://example.com/a.json"}, "https://example.com/a.json"),
        ({"properties": []}, "/properties must be an object"),
        ({"anyOf": {}}, "/anyOf must be a list"),
        ({"items": 5}, "/items must be an object or a boolean"),
        ({"enum": []}, "/enum"),
        ({"multipleOf": 123457}, "123457"),
        ({"multipleOf": 0}, "above 0"),
        ({"enum": [1, {"a": [-(2**53) - 1]}]}, "holds -9007199254740993"),
        ({"const": 2**53 + 1}, "give numbers as texts"),
        ({"maximum": -(2**63)}, "no integer of 64 bits"),
        ({"exclusiveMinimum": True}, "must be a number"),
        ({"pattern": "(x{500}){500}"}, "250000"),
        ({"patternProperties": {"(x{500}){500}": {}}}, "250000"),
        ({"properties": {f"p{i}": {} for i in range(301)}}, "301 properties"),
        ({"enum": list(range(2001))}, "2001 enum values"),
        ({"anyOf": [{}] * 101}, "101 schemas"),
        ({"allOf": [{"anyOf": [{}] * 11}, {"oneOf": [{}] * 10}]}, "110 combinations"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused(schema: Any, words: str) -> None:
    error = refusal(json_schema=schema)
    assert error.param == "json_schema"
    assert words in error.message


def test_nesting_and_size_are_bounded() -> None:
    schema: dict[str, Any] = {}
    for _ in range(24):
        schema = {"items": schema}
    schema_of(schema)
    assert "25 levels" in refusal(json_schema={"items": schema}).message
    wide: dict[str, Any] = {"properties": {f"p{i}": {} for i in range(300)}}
    too_wide = {"prefixItems": [wide] * 10}
    assert "3001 subschemas" in refusal(json_schema=too_wide).message
    assert "not valid JSON" in refusal(json_schema='{"items":' * 5000 + "{}" + "}" * 5000).message


@pytest.mark.parametrize(
    ("limits", "read"),
    [
        ((-(2**63), 2**63 - 1), (1024 - 2**63, 2**63 - 1024)),  # as many tools write for 64 bits
        ((2**53 + 1, 2**53 + 3), (2**53 + 2, 2**53 + 2)),
        ((-1e300, 10**400), (1024 - 2**63, 2**63 - 1024)),
        ((-0.1, 3.0), (-0.1, 3)),
    ],
)
def test_limits_are_narrowed_to_what_is_read_exactly(limits: Any, read: Any) -> None:
    for low, high in (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")):
        schema = schema_of({"type": "integer", low: limits[0], high: limits[1]})
        assert (schema[low], schema[high]) == read


def test_what_constrains_nothing_is_left_out() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/x",
        "title": "T",
        "type": "array",
        "uniqueItems": False,
        "items": {"type": "string", "format": "uri-reference", "nullable": True, "x-order": 1},
        "prefixItems": [{"format": "date", "default": "2020-01-01"}],
    }
    assert schema_of(schema) == {
        "type": "array",
        "items": {"type": "string"},
        "prefixItems": [{"format": "date"}],
    }


def test_properties_may_bear_the_names_of_keywords() -> None:
    schema = {"properties": {"not": {"type": "null"}, "title": {"const": 1}, "$ref": {}}}
    assert schema_of(schema) == schema


def test_a_discriminated_one_of_becomes_an_any_of() -> None:
    def option(kind: str) -> dict[str, Any]:
        return {"properties": {"kind": {"const": kind}}, "required": ["kind"]}

    schema = {
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": option("a"), "b": option("b")},
    }
    assert "anyOf" in schema_of(schema)
    ambiguous = schema | {"$defs": {"a": option("a"), "b": option("a")}}
    assert "oneOf" in schema_of(ambiguous)
    assert "oneOf" in schema_of({"oneOf": [{"$ref": "#"}, {"$ref": "#/nowhere"}]})


def test_strict_closes_objects_all_the_way_down() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}}, "c": {}},
        "$defs": {"b": {"properties": {"x": {}}}, "open": {"properties": {}, **SCHEMA}},
    }
    schema["$defs"]["open"]["additionalProperties"] = True  # type: ignore[index]
    grammar = grammar_of(response_format=named(schema=schema, strict=True))
    assert grammar is not None
    closed = json.loads(grammar.text)
    assert closed["additionalProperties"] is False
    assert closed["$defs"]["b"]["additionalProperties"] is False
    assert closed["$defs"]["open"]["additionalProperties"] is True
    assert "additionalProperties" not in closed["properties"]["c"]
    combined: dict[str, Any] = {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    error = refusal(response_format=named(schema=combined, strict=True))
    assert "allOf" in error.message


@pytest.mark.parametrize(
    ("regex", "length"),
    [
        ("abc", 3),
        ("a{3}b", 4),
        ("(ab){3}", 6),
        ("(a{10}){10}", 100),
        (r"\({3}[(){}]{2}", 5),
        ("[]a(]{4}x{2,5}", 9),
        ("a{99999999999}", 10**9),
        ("(a|b)*c+", 3),
    ],
)
def test_repetitions_are_counted(regex: str, length: int) -> None:
    assert expanded_len(regex, "regex") == length
