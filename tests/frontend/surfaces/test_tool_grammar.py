"""What a grammar of tool calls lets through is what the parser reads as calls."""

from __future__ import annotations

import functools
import json
import random
import re
from dataclasses import replace
from typing import Any

import jsonschema
import msgspec
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from frontend.fields.structural_tag import tag_grammar
from frontend.grammars.trial import try_grammar
from frontend.parsers.answer_parsers import AnswerParsers
from frontend.parsers.calls.tagged_calls import param_kinds
from frontend.parsers.tool_parsers import TOOL_PARSERS
from frontend.parsers.tools.deepseek import DeepseekV3
from frontend.parsers.tools.deepseek_v32 import DeepseekV32
from frontend.parsers.tools.gemma import FunctionGemma, Gemma4
from frontend.parsers.tools.glm import Glm45
from frontend.parsers.tools.gpt_oss import GptOss
from frontend.parsers.tools.kimi import KimiK2
from frontend.parsers.tools.marked_lists import Phi4Mini
from frontend.parsers.tools.minimax import MinimaxM2
from frontend.parsers.tools.pythonic import Llama4
from frontend.surfaces.tools.answer_styles import mark_ids
from frontend.surfaces.tools.tool_fields import ToolUse, chat_tool_use
from frontend.surfaces.tools.tool_grammar import ToolGrammar
from frontend.surfaces.tools.tool_shapes import ChatTool, ChatToolChoice
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.grammar import grammar_source, parser_limits
from shared.protocol.reply import AnswerFormat
from shared.protocol.sampling import Grammar, GrammarKind
from tests.frontend.surfaces.test_answer_parser import (
    CALL_BEGIN,
    CALL_END,
    CALLS,
    CALLS_END,
    DSML,
    SEP,
    Answer,
    read,
)
from tests.frontend.tiny_model import IM_END, make_tokenizer

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "R<[5]>om", 'a"b']},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
NAMES = ("get_weather", "now")
STYLES = [parser.name for parser in TOOL_PARSERS]
UNMARKED = tuple(parser.name for parser in TOOL_PARSERS if parser.is_bare)
CALL_OF = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    "qwen3-coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n"
    "</parameter>\n</function>\n</tool_call>",
    "llama3": '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
    "mistral-args": '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}',
    "json": '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
    "deepseek_v3": f"{CALLS}{CALL_BEGIN}function{SEP}get_weather\n"
    f'```json\n{{"city": "Oslo"}}\n```{CALL_END}{CALLS_END}',
    "deepseek_v31": f'{CALLS}{CALL_BEGIN}get_weather{SEP}{{"city": "Oslo"}}{CALL_END}{CALLS_END}',
    "pythonic": '[get_weather(city="Oslo", days=3), get_weather(city="Oslo")]',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
    "glm45": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "</tool_call>",
    "glm47": "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">'
    "Oslo</parameter>\n</invoke>\n</minimax:tool_call>",
    "deepseek_v32": f'<{DSML}function_calls>\n<{DSML}invoke name="get_weather">\n<{DSML}parameter '
    f'name="city" string="true">Oslo</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>',
    "seed_oss": "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n"
    "</function>\n</seed:tool_call>",
    "nemotron": '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]</TOOLCALL>',
    "olmo3": '<function_calls>get_weather(city="Oslo", days=3)</function_calls>',
    "mistral-call-id": '[TOOL_CALLS]get_weather[CALL_ID]a1B2c3d4e[ARGS]{"city": "Oslo"}',
    "functiongemma": "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}"
    "<end_function_call>",
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>',
    "phi4_mini": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]'
    "<|/tool_call|>",
    "functools": 'functools[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
    "granite": '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]',
    "llama4_pythonic": '[get_weather(city="Oslo", days=3)]',
    "llama4_json": '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
    "gpt_oss": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Oslo"}',
}
MARKS: tuple[str, ...] = (
    "[TOOL_CALLS]",
    "[ARGS]",
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "</think>",
    *DeepseekV3().shown_marks,
    *KimiK2().shown_marks,
    *MinimaxM2().shown_marks,
    *DeepseekV32().shown_marks,
    *Glm45.more_marks,
    *GptOss.more_marks,
    *FunctionGemma().shown_marks,
    *Gemma4().shown_marks,
    *Phi4Mini().shown_marks,
    *Llama4().shown_marks,
    "[CALL_ID]",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<TOOLCALL>",
    "<function_calls>",
    "</function_calls>",
)


def tokenizer(*, has_marks: bool) -> Tokenizer:
    made = make_tokenizer()
    if has_marks:
        made.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return made


def grammar_of(
    style: str,
    tokens: Tokenizer,
    use: ToolUse | None,
    reasoning: str | None = None,
    content: Grammar | None = None,
    **changes: Any,
) -> tuple[Grammar, AnswerFormat]:
    assert use is not None
    kinds = {tool.name: param_kinds(tool.parameters) for tool in use.callable}
    answer = AnswerFormat(
        tools=style, tool_names=NAMES, reasoning=reasoning, param_kinds=kinds, **changes
    )
    ids = mark_ids(AnswerParsers.of(answer), tokens)
    return ToolGrammar(use, answer, ids).grammar(content), answer


@functools.lru_cache(maxsize=2)
def tokens_of_grammars(tokenizer: str, size: int) -> LLTokenizer:
    return LLTokenizer(tokenizer, n_vocab=size, eos_token=[IM_END])


class Walk:
    """One output in a grammar."""

    def __init__(self, grammar: Grammar, tokens: Tokenizer) -> None:
        self._tokens = tokens
        read_by = tokens_of_grammars(tokens.to_str(), tokens.get_vocab_size())
        self.matcher = LLMatcher(read_by, grammar_source(grammar), limits=parser_limits())
        assert not self.matcher.is_error(), self.matcher.get_error()
        self.ids: list[int] = []

    def allowed(self) -> list[int]:
        mask = int.from_bytes(self.matcher.compute_bitmask(), "little")
        return [token_id for token_id, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]

    def say(self, text: str) -> bool:
        for token_id in self._tokens.encode(text, add_special_tokens=False).ids:
            if token_id not in self.allowed():
                return False
            assert self.matcher.consume_token(token_id)
        return True

    def wander(self, source: random.Random, num_tokens: int) -> str:
        """Random tokens; an end as soon as there may be one, after so many."""
        while not self.matcher.is_stopped():
            allowed = self.allowed()
            if IM_END in allowed and (len(self.ids) >= num_tokens or len(allowed) == 1):
                break
            token_id = source.choice([each for each in allowed if each != IM_END])
            assert self.matcher.consume_token(token_id)
            self.ids.append(token_id)
        return str(self._tokens.decode(self.ids, skip_special_tokens=False))


def check_calls(answer: Answer) -> None:
    schemas = {"get_weather": PARAMETERS, "now": {"type": "object", "maxProperties": 0}}
    for name, arguments in answer.calls:
        jsonschema.validate(json.loads(arguments), schemas[name])


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_required_calls_are_calls_and_nothing_else(style: str, has_marks: bool) -> None:
    tokens = tokenizer(has_marks=has_marks)
    grammar, answer = grammar_of(style, tokens, read_tools(TOOLS, "required", None))
    several = 0
    for seed in range(5):
        told = read(answer, Walk(grammar, tokens).wander(random.Random(seed), 150))
        assert told.calls
        assert (told.content, told.reasoning) == ("", "")
        check_calls(told)
        several += len(told.calls) > 1
    assert several or style == "gpt_oss"  # whose turn ends with a call


@pytest.mark.parametrize("style", STYLES)
def test_a_named_function_is_called_once(style: str) -> None:
    tokens = tokenizer(has_marks=True)
    choice = {"type": "function", "function": {"name": "now"}}
    grammar, answer = grammar_of(style, tokens, read_tools(TOOLS, choice, None))
    told = read(answer, Walk(grammar, tokens).wander(random.Random(1), 1000))
    assert [name for name, _ in told.calls] == ["now"]


def read_tools(tools: Any, choice: Any, parallel: bool | None) -> ToolUse | None:
    return chat_tool_use(
        msgspec.convert(tools, list[ChatTool]), msgspec.convert(choice, ChatToolChoice), parallel
    )


def with_parameters(**schema: Any) -> ToolUse:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    use = read_tools([tool], "required", None)
    assert use is not None
    return use


@pytest.mark.parametrize(
    ("said", "is_open"), [({}, False), ({"additionalProperties": {"type": "string"}}, True)]
)
def test_a_function_has_the_listed_parameters_unless_it_says_otherwise(
    said: dict[str, Any], is_open: bool
) -> None:
    tokens = tokenizer(has_marks=False)
    properties = {"place": {"type": "object", "properties": {"city": {"const": "Oslo"}}}}
    use = with_parameters(type="object", properties=properties, required=["place"], **said)
    grammar, _ = grammar_of("hermes", tokens, use)
    start = '<tool_call>\n{"name": "get_weather", "arguments": '
    assert Walk(grammar, tokens).say(start + '{"place": {"city": "Oslo"}}}')
    assert not Walk(grammar, tokens).say(start + '{"place": {"town')
    assert Walk(grammar, tokens).say(start + '{"place": {"city": "Oslo"}, "more') == is_open


def test_parameters_that_cannot_be_closed_stay_open() -> None:
    both = [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "string"}}}]
    [tool] = with_parameters(type="object", allOf=both).callable
    assert tool.schema() == {"type": "object", "allOf": both}
    with pytest.raises(UnsupportedParameter, match="allOf"):
        replace(tool, function=msgspec.structs.replace(tool.function, strict=True)).schema()


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_a_strict_call_is_held_to_its_schema_from_where_it_begins(
    style: str, has_marks: bool
) -> None:
    tokens = tokenizer(has_marks=has_marks)
    tools = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}]  # type: ignore[dict-item]
    grammar, _ = grammar_of(style, tokens, read_tools(tools, "auto", None))
    call = CALL_OF[style]
    head = TOOL_PARSERS.stored(style).content_head
    assert Walk(grammar, tokens).say(call)
    assert Walk(grammar, tokens).say(f"{head}Any text {{at}} all [1].\n")
    assert not Walk(grammar, tokens).say(call.replace("Oslo", "Osaka"))
    assert not Walk(grammar, tokens).say(call.replace("get_weather", "get_wealth"))
    assert try_grammar(grammar, LLTokenizer("byte")) == ""


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("is_inside", [True, False])
def test_a_model_may_think_before_it_must_call(has_marks: bool, is_inside: bool) -> None:
    tokens = tokenizer(has_marks=has_marks)
    use = read_tools(TOOLS, "required", None)
    grammar, answer = grammar_of("hermes", tokens, use, "think", begins_in_reasoning=is_inside)
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    text = ("" if is_inside else "<think>") + "Hm {\n</think>\n\n" + call
    assert Walk(grammar, tokens).say(text)
    assert read(answer, text) == Answer("Hm {", "", [("now", "{}")])
    if has_marks or not is_inside:  # else it may think of calls
        assert Walk(grammar, tokens).say(call) is not is_inside
    assert not Walk(grammar, tokens).say(text.replace("<tool_call>", "No: "))


@pytest.mark.parametrize("has_marks", [True, False])
def test_a_model_may_think_in_its_channel_before_it_must_call(has_marks: bool) -> None:
    tokens = tokenizer(has_marks=has_marks)
    use = read_tools(TOOLS, "required", None)
    grammar, answer = grammar_of("gpt_oss", tokens, use, "gpt_oss")
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    text = f"<|channel|>analysis<|message|>Hm {{<|end|><|start|>assistant{call}"
    assert Walk(grammar, tokens).say(text)
    assert Walk(grammar, tokens).say(call)
    assert read(answer, text) == Answer("Hm {", "", [("now", "{}")])
    for other in ("<|channel|>final<|message|>", "<|channel|>commentary<|message|>", "Hm"):
        assert not Walk(grammar, tokens).say(text.replace(call, other))
        assert not Walk(grammar, tokens).say(other)


@pytest.mark.parametrize("style", [each for each in STYLES if each not in UNMARKED])
def test_beside_a_schema_the_answer_is_of_it_or_calls(style: str) -> None:
    tokens = tokenizer(has_marks=True)
    schema = '{"type":"object","properties":{"x":{"const":1}},"required":["x"]}'
    content = Grammar(GrammarKind.JSON_SCHEMA, schema, "")
    grammar, answer = grammar_of(style, tokens, read_tools(TOOLS, "auto", None), None, content)
    head = TOOL_PARSERS.stored(style).content_head
    assert Walk(grammar, tokens).say(head + '{"x": 1}')
    assert not Walk(grammar, tokens).say(f"{head}text")
    told = [read(answer, Walk(grammar, tokens).wander(random.Random(i), 150)) for i in range(8)]
    assert any(each.calls for each in told)
    assert any(each.content for each in told)
    for each in told:
        check_calls(each)


TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<c>", "schema": {"enum": ["red", "blue"]}, "end": "</c>"}],
    "triggers": ["<c>"],
}


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("style", [each for each in STYLES if each not in UNMARKED])
def test_beside_a_structural_tag_the_answer_is_of_it_or_calls(style: str, has_marks: bool) -> None:
    tokens = tokenizer(has_marks=has_marks)
    content = Grammar(GrammarKind.LARK, tag_grammar(TAG, "p", tokens).text, "")
    grammar, answer = grammar_of(style, tokens, read_tools(TOOLS, "auto", None), None, content)
    parser, call = TOOL_PARSERS.stored(style), CALL_OF[style]
    said = f'{parser.content_head}It is <c>"red"</c>, <c>"blue"</c>!\n'
    assert Walk(grammar, tokens).say(said)
    assert not Walk(grammar, tokens).say(said.replace("blue", "green"))
    assert Walk(grammar, tokens).say(call)
    assert not Walk(grammar, tokens).say(call.replace("Oslo", "Osaka"))
    is_token = tokens.token_to_id(parser.marks.begin) is not None
    if not parser.content_head:
        assert Walk(grammar, tokens).say(said + call) is is_token
        assert not Walk(grammar, tokens).say(said + call.replace("Oslo", "Osaka"))
    for seed in range(4):
        text = Walk(grammar, tokens).wander(random.Random(seed), 120)
        whole = read(answer, text)
        assert read(answer, *text) == whole
        check_calls(whole)
        assert not re.sub(r'<c>("red"|"blue")</c>', "", whole.content).count("<c>")
    assert try_grammar(grammar, LLTokenizer("byte")) == ""


@pytest.mark.parametrize("style", UNMARKED)
def test_beside_a_schema_calls_need_a_mark(style: str) -> None:
    content = Grammar(GrammarKind.JSON_SCHEMA, "{}", "")
    tokens = tokenizer(has_marks=True)
    with pytest.raises(UnsupportedParameter, match="no mark"):
        grammar_of(style, tokens, read_tools(TOOLS, "auto", None), None, content)


def test_only_one_call_where_they_may_not_be_parallel() -> None:
    tokens = tokenizer(has_marks=True)
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    grammar, _ = grammar_of("hermes", tokens, read_tools(TOOLS, "auto", False))
    assert Walk(grammar, tokens).say(f"So: {call}")
    assert not Walk(grammar, tokens).say(f"{call}\n{call}")
    grammar, _ = grammar_of("hermes", tokens, read_tools(TOOLS, "required", None))
    assert Walk(grammar, tokens).say(f"{call}\n{call}")


def coder_grammar(properties: dict[str, Any], **function: Any) -> tuple[Grammar, AnswerFormat]:
    parameters = {"type": "object", "properties": properties}
    tools = [
        {"type": "function", "function": {"name": "now", "parameters": parameters, **function}}
    ]
    use = read_tools(tools, "required", None)
    return grammar_of("qwen3-coder", tokenizer(has_marks=False), use)


def test_arguments_in_tags_are_of_their_types_in_the_order_of_the_schema() -> None:
    grammar, answer = coder_grammar(
        {
            "text": {"type": "string"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "list": {"type": "array", "items": {"type": "integer"}},
        }
    )
    call = "<tool_call>\n<function=now>\n{}</function>\n</tool_call>"
    params = [
        "<parameter=text>\n12 </p\n\n</parameter>\n",
        "<parameter=note>\nnull\n</parameter>\n",
        "<parameter=list>\n[1, 2]\n</parameter>\n",
    ]
    tokens = tokenizer(has_marks=False)
    for given, arguments in (
        (params, '{"text": "12 </p\\n", "note": null, "list": [1, 2]}'),
        (params[2:], '{"list": [1, 2]}'),
        ([], "{}"),
    ):
        text = call.format("".join(given))
        assert Walk(grammar, tokens).say(text)
        assert read(answer, text) == Answer(calls=[("now", arguments)])
    assert not Walk(grammar, tokens).say(call.format("".join(params[::-1])))
    assert not Walk(grammar, tokens).say(call.format(params[2].replace("1", "x")))


@pytest.mark.parametrize(
    ("properties", "param"),
    [
        ({"a": {"type": "string", "pattern": "x+"}}, "tools[0].function.parameters.properties.a"),
        ({"a>": {}}, "tools[0].function.parameters"),
    ],
)
def test_what_tags_cannot_be_held_to_is_refused(properties: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        coder_grammar(properties)
    assert caught.value.param == param


BRACED = {
    "type": "object",
    "properties": {
        "who": {"type": "string"},
        "kind": {"enum": ["a", 2, None]},
        "note": {"type": ["string", "null"]},
        "places": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "y": {}},
                "required": ["x"],
            },
        },
        "map": {"type": "object"},
    },
    "required": ["kind"],
}


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("style", ["functiongemma", "gemma4"])
def test_arguments_in_braces_are_of_their_schema(style: str, has_marks: bool) -> None:
    tokens = tokenizer(has_marks=has_marks)
    tools = [{"type": "function", "function": {"name": "now", "parameters": BRACED}}]
    use = read_tools(tools, "required", False)
    quote = "<escape>" if style == "functiongemma" else '<|"|>'
    grammar, answer = grammar_of(style, tokens, use)
    begin, end = TOOL_PARSERS.stored(style).marks
    who, places = f'{quote}a, "}}:{quote}', f"[{{x:1,y:[{{a:{quote}{quote}}}]}}]"
    for given, is_held in (
        (f"{{who:{who},kind:2,note:null,places:{places}}}", True),
        (f"{{kind:{quote}a{quote},places:[],map:{{b:true,c:{{}}}}}}", True),
        (f"{{kind:{quote}b{quote}}}", False),
        (f"{{who:{quote}x{quote}}}", False),
        ("{kind:2,places:[{y:1}]}", False),
        ("{kind:2,more:1}", False),
    ):
        text = f"{begin}call:now{given}{end}"
        assert Walk(grammar, tokens).say(text) is is_held
        if is_held:
            [(_, arguments)] = read(answer, text).calls
            jsonschema.validate(json.loads(arguments), BRACED)
    for seed in range(4 * has_marks):
        told = read(answer, Walk(grammar, tokens).wander(random.Random(seed), 100))
        for _, arguments in told.calls:
            jsonschema.validate(json.loads(arguments), BRACED)
    assert try_grammar(grammar, LLTokenizer("byte")) == ""


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "string", "pattern": "x+"}, "parameters.properties.a"),
        ({"type": "array", "minItems": 1}, "parameters.properties.a"),
        ({"enum": [{"b": 1}]}, "parameters.properties.a"),
        ({"$ref": "#/$defs/b"}, "parameters"),
    ],
)
def test_what_braces_cannot_be_held_to_is_refused(schema: dict[str, Any], param: str) -> None:
    parameters: dict[str, Any] = {"type": "object", "properties": {"a": schema}}
    if "$ref" in schema:
        parameters["$defs"] = {"b": {"type": "string"}}
    tools = [{"type": "function", "function": {"name": "now", "parameters": parameters}}]
    with pytest.raises(UnsupportedParameter) as caught:
        grammar_of("gemma4", tokenizer(has_marks=False), read_tools(tools, "required", None))
    assert caught.value.param == f"tools[0].function.{param}"


def test_parameters_that_are_no_object_are_refused() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]
    with pytest.raises(InvalidRequest) as caught:
        grammar_of("json", tokenizer(has_marks=False), read_tools(tools, "required", None))
    assert caught.value.param == "tools[0].function.parameters.type"
