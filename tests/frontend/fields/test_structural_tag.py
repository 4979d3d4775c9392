"""`structural_tag`: what the grammar of each form lets through, and what is refused by name."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken

from frontend.fields.grammar_fields import GrammarFields, WantedGrammar, resolve_grammar
from frontend.fields.structural_tag import tag_grammar
from frontend.grammars.trial import try_grammar
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.sampling import GrammarKind
from tests.frontend.surfaces.test_tool_grammar import Walk
from tests.frontend.tiny_model import make_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
    "additionalProperties": False,
}
PLAIN = make_tokenizer()
MARKED = make_tokenizer()
MARKED.add_tokens([AddedToken(each, special=True) for each in ("<call>", "</call>", "</think>")])
JSON: dict[str, Any] = {"type": "json_schema", "json_schema": SCHEMA}
ANY: dict[str, Any] = {"type": "any_text"}
OLDER: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=one>", "schema": SCHEMA, "end": "</f>"},
        {"begin": "<f=two>", "structural_tag_schema": {"type": "boolean"}, "end": "</f>"},
        {"begin": "<call>", "schema": {"const": "x"}, "end": "</call>"},
    ],
    "triggers": ["<f=", "<call>"],
}


def wanted_of(value: Any, tokens: Any = PLAIN) -> WantedGrammar:
    wanted = resolve_grammar(GrammarFields(response_format=value), tokens)
    assert wanted is not None
    assert wanted.grammar.kind is GrammarKind.LARK
    assert try_grammar(wanted.grammar, LLTokenizer("byte")) == ""
    return wanted


def is_held(value: Any, text: str, tokens: Any = PLAIN) -> bool:
    """Whether the text, and nothing behind it, may come out."""
    walk = Walk(wanted_of(value, tokens).grammar, tokens)
    return walk.say(text) and walk.matcher.is_accepting()


def tag(begin: str, content: dict[str, Any], end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def new(form: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}


def triggered(**fields: Any) -> dict[str, Any]:
    tags = [tag("<a>", JSON, "</a>"), tag("<ab>", ANY, "</ab>")]
    return new({"type": "triggered_tags", "triggers": ["<a"], "tags": tags, **fields})


@pytest.mark.parametrize("tokens", [PLAIN, MARKED], ids=["spelled", "tokens"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("Any < text\n<f", True),
        ('So: <f=one>{"a": 5}</f> and <f=two>true</f>.', True),
        ('<call>"x"</call><f=two>false</f>', True),
        ("<f=one>", False),
        ("<f=three>", False),
        ("<f=two>maybe", False),
        ('a <call>"y"', False),
        ('a <call>y <f=one>{"a": 5}</f>', False),
        ('a <f=y <call>"x"</call>', False),
        ('<f=two>true</f> <f=one>{"b": 5}', False),
    ],
)
def test_triggers_begin_tags_amid_free_text(tokens: Any, text: str, expected: bool) -> None:
    assert is_held(OLDER, text, tokens) is expected
    newer = new(
        {
            "type": "triggered_tags",
            "triggers": OLDER["triggers"],
            "tags": [
                tag("<f=one>", JSON, "</f>"),
                tag("<f=two>", {"type": "json_schema", "json_schema": {"type": "boolean"}}, "</f>"),
                tag("<call>", {"type": "json_schema", "json_schema": {"const": "x"}}, ["</call>"]),
            ],
        }
    )
    assert is_held(newer, text, tokens) is expected


def test_whatever_comes_out_is_of_its_form() -> None:
    source = random.Random(5)
    grammar = wanted_of(OLDER, MARKED).grammar
    num_tags = 0
    for _ in range(20):
        text = Walk(grammar, MARKED).wander(source, 100)
        for said in re.findall(r"<call>(.*?)</call>", text, re.DOTALL):
            assert json.loads(said) == "x"
            num_tags += 1
    assert num_tags > 5


@pytest.mark.parametrize(
    ("form", "held", "refused"),
    [
        (triggered(), ["x", '<a>{"a": 1}</a> y <ab>any <a</ab>'], ["<ac", "<a>{}"]),
        (triggered(at_least_one=True), ['<a>{"a": 1}</a> y'], ["", "x"]),
        (triggered(stop_after_first=True), ["x", 'x <a>{"a": 1}</a>'], ['<a>{"a": 1}</a> y']),
        (
            triggered(at_least_one=True, stop_after_first=True),
            ["<ab></ab>"],
            ["", "x<ab></ab>", "<ab></ab>x"],
        ),
        (new({"type": "const_string", "value": "a/b"}), ["a/b"], ["", "a", "a/bc"]),
        (new(JSON), ['{"a": 1}'], ["", "{}"]),
        (new(ANY), ["", "any\nthing"], []),
        (new({**ANY, "excludes": ["a.c/", "\n"]}), ["", "abc/", "a.c"], ["xa.c/", "a\nb"]),
        (triggered(excludes=["no"]), ['n <ab>no</ab> o <a>{"a": 1}</a>'], ["no", "x<ab></ab>no"]),
        (
            new(tag("<x>", {**ANY, "excludes": ["no"]}, "</x>")),
            ["<x>n</x>"],
            ["<x>no</x>", "<x>no"],
        ),
        (new({"type": "regex", "pattern": "[a-z]+/\\d"}), ["ab/1"], ["", "ab", "ab/x"]),
        (
            new({"type": "or", "elements": [JSON, {"type": "const_string", "value": "no"}]}),
            ["no", '{"a":1}'],
            ["", "yes"],
        ),
        (
            new(
                {
                    "type": "sequence",
                    "elements": [
                        {"type": "optional", "content": tag("<think>", ANY, "</think>")},
                        {"type": "plus", "content": tag("[", JSON, "]")},
                        ANY,
                    ],
                }
            ),
            ['<think>Hm [</think>[{"a": 1}][{"a": 2}] so', '[{"a": 1}]'],
            ["", "<think>Hm", "<think></think>x", "so"],
        ),
        (
            new(tag("<x>", {"type": "regex", "pattern": "[a-z ]*"}, "</x>")),
            ["<x>a b</x>", "<x></x>"],
            ["<x>a", "<x>A", "<x></x> "],
        ),
        (
            new(
                {
                    "type": "tags_with_separator",
                    "tags": [tag("<x>", JSON, "</x>"), tag("<y>", ANY, "</y>")],
                    "separator": ", ",
                }
            ),
            ["", "<y>a</y>", '<x>{"a": 1}</x>, <y></y>, <y></y>'],
            ["<y></y>,", "<y></y><y></y>", "a"],
        ),
        (
            new(
                {
                    "type": "tags_with_separator",
                    "tags": [tag("<y>", ANY, "</y>")],
                    "separator": "",
                    "at_least_one": True,
                    "stop_after_first": True,
                }
            ),
            ["<y>a</y>"],
            ["", "<y></y><y></y>"],
        ),
    ],
)
def test_each_form(form: dict[str, Any], held: list[str], refused: list[str]) -> None:
    for text in held:
        assert is_held(form, text), text
    for text in refused:
        assert not is_held(form, text), text


def test_marks_that_are_tokens_are_asked_for_as_such() -> None:
    think = tag("", ANY, ["</think>", "</call>"])
    form = new({"type": "sequence", "elements": [think, JSON]})
    wanted = wanted_of(form, MARKED)
    assert wanted.mark_ids == tuple(map(MARKED.token_to_id, ("</think>", "</call>")))
    assert is_held(form, 'Hm.</think>{"a": 1}', MARKED)
    assert is_held(form, 'Hm.</call>{"a": 1}', MARKED)
    with pytest.raises(UnsupportedParameter, match="one end"):
        wanted_of(form, PLAIN)


def test_each_place_takes_it() -> None:
    text = json.dumps(OLDER)
    fields: list[dict[str, Any]] = [
        {"structural_tag": text},
        {"structural_tag": OLDER},
        {"structured_outputs": {"structural_tag": text}},
        {"response_format": OLDER},
    ]
    grammars = [resolve_grammar(GrammarFields(**each), PLAIN) for each in fields]
    assert all(each is not None and each.grammar == grammars[0].grammar for each in grammars)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("value", "param", "words"),
    [
        ("{", "p", "not valid JSON"),
        (3, "p", "must be an object"),
        ({"type": "tag"}, "p.type", "must be structural_tag"),
        ({}, "p.format", "must be an object"),
        (new({}), "p.format.type", "required"),
        (new({"type": "qwen_xml_parameter", "json_schema": {}}), "p.format.type", "not supported"),
        (new({"type": "grammar", "grammar": "root ::= x"}), "p.format.type", "not supported"),
        (new({"type": "any_text", "excludes": ["x", ""]}), "p.format.excludes", "an empty text"),
        (new({"type": "any_text", "excludes": "x"}), "p.format.excludes", "must be a list"),
        (new({"type": "sequence", "elements": []}), "p.format.elements", "1 to 500"),
        (
            new({"type": "sequence", "elements": [ANY, ANY]}),
            "p.format.elements[0].type",
            "something follows",
        ),
        (
            new(tag("a", {"type": "sequence", "elements": [ANY]}, "b")),
            "p.format.content.elements[0].type",
            "something follows",
        ),
        (new(tag("a", ANY, ["b", "c"])), "p.format.end", "one end"),
        (new(tag("a", ANY, "")), "p.format.end", "one end"),
        (new({**tag("a", ANY, "b"), "begin": None}), "p.format.begin", "must be text"),
        (new({"type": "json_schema", "json_schema": 5}), "p.format.json_schema", "object"),
        (
            new({"type": "json_schema", "json_schema": {"not": {}}}),
            "p.format.json_schema",
            "'not'|not",
        ),
        (new({"type": "regex", "pattern": "a\\"}), "p.format.pattern", "backslash"),
        (triggered(triggers=["<b"]), "p.format.tags[0].begin", "none of the triggers"),
        (triggered(triggers=["<a", "<ab"]), "p.format.triggers", "another one begins"),
        (triggered(at_least_one=1), "p.format.at_least_one", "true or false"),
        ({**OLDER, "triggers": None}, "p.triggers", "list"),
        ({**OLDER, "more": 1}, "p.more", "not supported"),
    ],
)
def test_refusals(value: Any, param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        tag_grammar(value, "p", PLAIN)
    assert caught.value.param == param


def test_a_trigger_is_a_token_or_none() -> None:
    form = new(
        {"type": "triggered_tags", "triggers": ["<call>{"], "tags": [tag("<call>{", ANY, "}")]}
    )
    assert is_held(form, "<call>{x}", PLAIN)
    with pytest.raises(UnsupportedParameter, match="the token alone"):
        tag_grammar(form, "p", MARKED)


def test_nesting_and_size_are_bounded() -> None:
    form: dict[str, Any] = ANY
    for _ in range(20):
        form = {"type": "or", "elements": [form]}
    with pytest.raises(InvalidRequest, match="levels deep"):
        tag_grammar(new(form), "p", None)
    many = {"type": "sequence", "elements": [{"type": "or", "elements": [JSON] * 200}] * 20}
    with pytest.raises(InvalidRequest, match="more than 500"):
        tag_grammar(new(many), "p", None)
