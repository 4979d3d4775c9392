"""Reasoning, content and calls of tools, read from text that comes in any pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.parsers.answer_parsers import AnswerParsers
from frontend.parsers.reasoning import REASONING_PARSERS
from frontend.parsers.tool_parsers import TOOL_PARSERS
from frontend.surfaces.tools.answer_machines import answer_parser
from frontend.surfaces.tools.answer_parser import AnswerDelta
from frontend.surfaces.tools.answer_styles import AnswerStyles
from shared.errors import ConfigError, MalformedMessage
from shared.protocol.reply import AnswerFormat, ParamKind

NAMES = ("add", "get_weather")
HERMES = AnswerFormat(tools="hermes")
LLAMA3 = AnswerFormat(tools="llama3", tool_names=NAMES)
MISTRAL = AnswerFormat(tools="mistral")
JSON = AnswerFormat(tools="json", tool_names=NAMES)
THINK = AnswerFormat(reasoning="think")
INSIDE = AnswerFormat(reasoning="think", begins_in_reasoning=True)
QWEN3 = AnswerFormat(tools="hermes", reasoning="think")
MAGISTRAL = AnswerFormat(tools="mistral-args", reasoning="mistral")
HIDDEN = AnswerFormat(reasoning="think", hides_reasoning=True)
CODER = AnswerFormat(
    tools="qwen3-coder",
    param_kinds={"add": {"a": ParamKind.JSON, "c": ParamKind.TEXT_OR_NULL}},
)
GLM_KINDS = {"add": {"a": ParamKind.JSON}}
DEEPSEEK = AnswerFormat(tools="deepseek_v3", reasoning="deepseek_r1")
DEEPSEEK_31 = AnswerFormat(tools="deepseek_v31")
DEEPSEEK_32 = AnswerFormat(tools="deepseek_v32", reasoning="think", param_kinds=GLM_KINDS)
PYTHONIC = AnswerFormat(tools="pythonic", tool_names=NAMES)
GRANITE = AnswerFormat(tools="json", tool_names=NAMES, reasoning="granite")
KIMI = AnswerFormat(tools="kimi_k2", reasoning="think")
GLM = AnswerFormat(tools="glm45", reasoning="think", param_kinds=GLM_KINDS)
GLM_47 = AnswerFormat(tools="glm47", param_kinds=GLM_KINDS)
OSS = AnswerFormat(tools="gpt_oss", tool_names=NAMES, reasoning="gpt_oss")
OSS_ALONE = AnswerFormat(reasoning="gpt_oss")
OSS_HIDDEN = msgspec.structs.replace(OSS, hides_reasoning=True)
MINIMAX = AnswerFormat(tools="minimax_m2", param_kinds=GLM_KINDS)
FUNCTION_GEMMA = AnswerFormat(tools="functiongemma")
GEMMA_4 = AnswerFormat(tools="gemma4", reasoning="gemma4")
PHI_4 = AnswerFormat(tools="phi4_mini")
FUNCTOOLS = AnswerFormat(tools="functools")
GRANITE_3 = AnswerFormat(tools="granite")
LLAMA_4 = AnswerFormat(tools="llama4_pythonic", tool_names=NAMES)
LLAMA_4_JSON = AnswerFormat(tools="llama4_json", tool_names=NAMES)
SEED = AnswerFormat(tools="seed_oss", reasoning="seed_oss", param_kinds=GLM_KINDS)
NEMOTRON = AnswerFormat(tools="nemotron", reasoning="think")
OLMO = AnswerFormat(tools="olmo3")
FORMATS = (
    SEED, NEMOTRON, OLMO,
    FUNCTION_GEMMA, GEMMA_4, PHI_4, FUNCTOOLS, GRANITE_3, LLAMA_4, LLAMA_4_JSON,
    HERMES, CODER, LLAMA3, MISTRAL, JSON, THINK, INSIDE, QWEN3, MAGISTRAL, HIDDEN,
    DEEPSEEK, DEEPSEEK_31, DEEPSEEK_32, PYTHONIC, GRANITE, KIMI, GLM, GLM_47, MINIMAX,
    OSS, OSS_ALONE, OSS_HIDDEN,
)  # fmt: skip
CALLS, CALLS_END = (f"<\uff5ctool\u2581calls\u2581{place}\uff5c>" for place in ("begin", "end"))
CALL_BEGIN, CALL_END = (f"<\uff5ctool\u2581call\u2581{place}\uff5c>" for place in ("begin", "end"))
SEP = "<\uff5ctool\u2581sep\uff5c>"
DSML = "\uff5cDSML\uff5c"
DSML_CALL = (
    f'<{DSML}function_calls>\n<{DSML}invoke name="add">\n<{DSML}parameter name="a" string="true">'
    f'1\n</{DSML}parameter>\n<{DSML}parameter name="b" string="false">[1, "x"]</{DSML}parameter>\n'
    f'<{DSML}parameter name="c" string="false">né</{DSML}parameter>\n</{DSML}invoke>\n'
    f'<{DSML}invoke name="now">\n</{DSML}invoke>\n</{DSML}function_calls>'
)


@dataclass
class Answer:
    """What a client puts together."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    def add(self, delta: AnswerDelta) -> None:
        self.reasoning += delta.reasoning
        self.content += delta.content
        for call in delta.calls:
            if call.name:
                assert call.idx == len(self.calls)
                self.calls.append((call.name, ""))
            name, arguments = self.calls[call.idx]
            self.calls[call.idx] = (name, arguments + call.arguments)


def read(answer: AnswerFormat, *pieces: str, is_cut: bool = False) -> Answer:
    parser = answer_parser(answer)
    read = Answer()
    for piece in pieces:
        read.add(parser.feed(piece))
    read.add(parser.finish(is_cut=is_cut))
    text = "".join(pieces)
    assert (parser.num_read, parser.checksum) == (len(text), crc32(text.encode()))
    return read


CASES = [
    (HERMES, "Hello, <b>world</b>!", Answer(content="Hello, <b>world</b>!")),
    (
        HERMES,
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": [1, "}"], "b": "é\\"{"}}\n'
        '</tool_call>\n<tool_call>{"name":"get_weather","arguments":{}}</tool_call>\n',
        Answer(
            "", "Let me see.", [("add", '{"a": [1, "}"], "b": "é\\"{"}'), ("get_weather", "{}")]
        ),
    ),
    (
        HERMES,
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    (HERMES, '<tool_call>{"name": "now"}</tool_call>', Answer(calls=[("now", "{}")])),
    (
        HERMES,
        '<tool_call>{"name": "a", "arguments": {}}<tool_call>{"name": "b", "arguments": {}}',
        Answer(calls=[("a", "{}"), ("b", "{}")]),
    ),
    (HERMES, "Write <tool_call> there", Answer(content="Write <tool_call> there")),
    (HERMES, "a <<tool", Answer(content="a <<tool")),
    (HERMES, '<tool_call>{"nom": 1}', Answer(content='<tool_call>{"nom": 1}')),
    (
        LLAMA3,
        '{"name": "add", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}}',
        Answer(calls=[("add", '{"a": 1}'), ("get_weather", "{}")]),
    ),
    (
        LLAMA3,
        '<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1}}',
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    (
        LLAMA3,
        'I ask: <|python_tag|>{"name": "add", "parameters": {"a": 1}}',
        Answer("", "I ask:", [("add", '{"a": 1}')]),
    ),
    (LLAMA3, '{"name": "Ada"}', Answer(content='{"name": "Ada"}')),
    (LLAMA3, ' {"a": 1}', Answer(content=' {"a": 1}')),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "sub", "arguments": {}}]',
        Answer(calls=[("add", '{"a": 1}'), ("sub", "{}")]),
    ),
    (
        MISTRAL,
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]',
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    (
        MAGISTRAL,
        '[THINK]Hm.[/THINK]Sure.[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]sub[CALL_ID]a1[ARGS]{}',
        Answer("Hm.", "Sure.", [("add", '{"a": 1}'), ("sub", "{}")]),
    ),
    (MAGISTRAL, '[TOOL_CALLS]add{"a": 1}', Answer(calls=[("add", '{"a": 1}')])),
    (
        CODER,
        "So:\n<tool_call>\n<function=add>\n<parameter=a>\n[1, 2]\n</parameter>\n<parameter=b>\n"
        '12 "é"\n\n</parameter>\n<parameter=c>null</parameter>\n</function>\n</tool_call>\n'
        "<tool_call><function=now></function></tool_call>",
        Answer(
            "", "So:", [("add", '{"a": [1, 2], "b": "12 \\"é\\"\\n", "c": null}'), ("now", "{}")]
        ),
    ),
    (
        CODER,
        "<tool_call><function=add><parameter=a>True</parameter><parameter=a>yes</parameter>"
        "</tool_call>",
        Answer(calls=[("add", '{"a": true, "a": "yes"}')]),
    ),
    (CODER, "<tool_call>\n{}", Answer(content="<tool_call>\n{}")),
    (CODER, "<tool_call><function=a b>", Answer(content="<tool_call><function=a b>")),
    (JSON, '{"name": "add", "arguments": {"a": 1}}', Answer(calls=[("add", '{"a": 1}')])),
    (
        JSON,
        ' [ {"name": "add", "arguments": {"a": 1}} , {"name": "add", "arguments": {"a": 2}} ] ',
        Answer(calls=[("add", '{"a": 1}'), ("add", '{"a": 2}')]),
    ),
    (
        JSON,
        '[{"name": "sub", "arguments": {}}]',
        Answer(content='[{"name": "sub", "arguments": {}}]'),
    ),
    (JSON, "[1, 2]", Answer(content="[1, 2]")),
    (THINK, "<think>\nHm, <b>.\n</think>\n\nYes.\n", Answer("Hm, <b>.", "Yes.\n")),
    (THINK, "Yes. <think>no</think>", Answer(content="Yes. <think>no</think>")),
    (THINK, "<think>\n\n</think>\n\nYes.", Answer(content="Yes.")),
    (INSIDE, "Hm.\n</think>Yes.", Answer("Hm.", "Yes.")),
    (INSIDE, "\nHm, </thin", Answer("Hm, </thin")),
    (HIDDEN, "<think>Hm.</think>Yes.", Answer(content="Yes.")),
    (
        QWEN3,
        '<think>A <tool_call>?</think>\n<tool_call>{"name": "a", "arguments": {}}</tool_call>',
        Answer("A <tool_call>?", "", [("a", "{}")]),
    ),
    (
        DEEPSEEK,
        f"Hm.</think>\n\nI ask.{CALLS}"
        f'{CALL_BEGIN}function{SEP}add\n```json\n{{"a": "`"}}\n```{CALL_END}\n'
        f"{CALL_BEGIN}function{SEP}now\n```json\n{{}}\n```{CALL_END}{CALLS_END}",
        Answer("Hm.", "I ask.", [("add", '{"a": "`"}'), ("now", "{}")]),
    ),
    (DEEPSEEK, "<think>\nHm.</think>Yes.", Answer("Hm.", "Yes.")),
    (DEEPSEEK, "Hm, <think", Answer("Hm, <think")),
    (DEEPSEEK, "<thi", Answer("<thi")),
    (
        DEEPSEEK_31,
        f'{CALLS}{CALL_BEGIN}add{SEP}{{"a": 1}}{CALL_END}'
        f"{CALL_BEGIN}now{SEP}{{}}{CALL_END}{CALLS_END}",
        Answer(calls=[("add", '{"a": 1}'), ("now", "{}")]),
    ),
    (
        DEEPSEEK_31,
        f"{CALLS}{CALL_BEGIN}add{SEP}{{}}{CALL_BEGIN}now{SEP}{{}}{CALLS_END}So.",
        Answer("", "So.", [("add", "{}"), ("now", "{}")]),
    ),
    (DEEPSEEK_31, f"{CALLS}add", Answer(content=f"{CALLS}add")),
    (DEEPSEEK_31, f"{CALLS}{CALL_BEGIN}a b", Answer(content=f"{CALLS}{CALL_BEGIN}a b")),
    (
        PYTHONIC,
        "[add(a=1, b=\"x, \\\"y)\", c=[True, (2, None,)], d={'k': '\"'}), get_weather( )]",
        Answer(
            calls=[
                ("add", '{"a": 1, "b": "x, \\"y)", "c": [true, [2, null]], "d": {"k": "\\""}}'),
                ("get_weather", "{}"),
            ]
        ),
    ),
    (
        PYTHONIC,
        " [add(a='\\ud83d\\ude42\\x41\\q', b=1 + 1, c='\\ud800')] Done",
        Answer(
            "",
            "Done",
            [("add", '{"a": "🙂A\\\\q", "b": "1 + 1", "c": "\ufffd"}')],
        ),
    ),
    (PYTHONIC, "[1, 2]", Answer(content="[1, 2]")),
    (PYTHONIC, "[sub(a=1)]", Answer(content="[sub(a=1)]")),
    (PYTHONIC, "add(a=1)", Answer(content="add(a=1)")),
    (
        GRANITE,
        'Here\'s my thought process: Hm. Here is my response: {"name": "add", "arguments": {}}',
        Answer("Hm.", "", [("add", "{}")]),
    ),
    (GRANITE, "Here is my answer.", Answer(content="Here is my answer.")),
    (
        KIMI,
        "<think>Hm.</think>I ask.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
        '<|tool_call_argument_begin|>{"a": "<|"}<|tool_call_end|><|tool_call_begin|>now:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        Answer("Hm.", "I ask.", [("add", '{"a": "<|"}'), ("now", "{}")]),
    ),
    (
        KIMI,
        "<|tool_calls_section_begin|><|tool_call_begin|>add sub",
        Answer(content="<|tool_calls_section_begin|><|tool_call_begin|>add sub"),
    ),
    (
        GLM,
        "<think>Hm.</think>\nSo:\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>[1, 2]"
        '</arg_value>\n<arg_key>b</arg_key>\n<arg_value>"é" </arg_value>\n</tool_call>\n'
        "<tool_call>now\n</tool_call>",
        Answer("Hm.", "So:", [("add", '{"a": [1, 2], "b": "\\"é\\" "}'), ("now", "{}")]),
    ),
    (GLM, "<tool_call>a b", Answer(content="<tool_call>a b")),
    (
        GLM_47,
        "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key>2"
        "</tool_call>Done",
        Answer("", "Done", [("add", '{"a": 1}')]),
    ),
    (
        MINIMAX,
        '<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">true</parameter>\n'
        '<parameter name="b">x > "y"</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
        "</minimax:tool_call>",
        Answer(calls=[("add", '{"a": true, "b": "x > \\"y\\""}'), ("now", "{}")]),
    ),
    (
        MINIMAX,
        '<minimax:tool_call><invoke name="">',
        Answer(content='<minimax:tool_call><invoke name="">'),
    ),
    (
        DEEPSEEK_32,
        f"<think>Hm.</think>So:\n\n{DSML_CALL}",
        Answer("Hm.", "So:", [("add", '{"a": "1\\n", "b": [1, "x"], "c": "né"}'), ("now", "{}")]),
    ),
    (
        DEEPSEEK_32,  # whose tag does not say what its value is: as the schema has it
        f'<{DSML}function_calls><{DSML}invoke name="add"><{DSML}parameter name="a">1'
        f"</{DSML}parameter></{DSML}invoke></{DSML}function_calls>",
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    (
        FUNCTION_GEMMA,
        'So:\n<start_function_call>call:add{a:<escape>x, {y}: "<escape>,b:[1,{c:true}],d:None,'
        "e:Oslo}<end_function_call><start_function_call>call: now {} <end_function_call>",
        Answer(
            "",
            "So:",
            [
                ("add", '{"a": "x, {y}: \\"", "b": [1,{"c":true}], "d": null, "e": "Oslo"}'),
                ("now", "{}"),
            ],
        ),
    ),
    (
        FUNCTION_GEMMA,
        "<start_function_call>call:add{a}<end_function_call>",
        Answer(calls=[("add", "{}")]),
    ),
    (
        FUNCTION_GEMMA,
        "<start_function_call>call:{",
        Answer(content="<start_function_call>call:{"),
    ),
    (
        GEMMA_4,
        '<|channel>thought\nHm.<channel|><|tool_call>call:add{a:<|"|>it is "<b>"<|"|>,'
        'b:{"c":<|"|><|"|>,d:"\\"}"}, e:12:30}<tool_call|>',
        Answer(
            "Hm.",
            "",
            [("add", '{"a": "it is \\"<b>\\"", "b": {"c":"","d":"\\"}"}, "e": "12:30"}')],
        ),
    ),
    (GEMMA_4, "<|channel>thought\n<channel|>Yes.", Answer(content="Yes.")),
    (
        PHI_4,
        'I ask.<|tool_call|>[{"name": "add", "arguments": {"a": 1}}, {"name": "now", '
        '"arguments": {}}]<|/tool_call|>',
        Answer("", "I ask.", [("add", '{"a": 1}'), ("now", "{}")]),
    ),
    (PHI_4, '<|tool_call|>[{"name": "now"}] a<', Answer("", "a<", [("now", "{}")])),
    (
        FUNCTOOLS,
        ' functools[{"name": "add", "arguments": {"a": 1}}]',
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    (
        SEED,
        "<seed:think>Hm.</seed:think>So:\n<seed:tool_call>\n<function=add>\n<parameter=a>[1]"
        "</parameter>\n<parameter=b>x\ny</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        Answer("Hm.", "So:", [("add", '{"a": [1], "b": "x\\ny"}'), ("now", "{}")]),
    ),
    (SEED, "<seed:tool_call>x", Answer(content="<seed:tool_call>x")),
    (
        NEMOTRON,
        '<think>Hm.</think><TOOLCALL>[{"name": "add", "arguments": {"a": 1}}, {"name": "now", '
        '"arguments": {}}]</TOOLCALL>',
        Answer("Hm.", "", [("add", '{"a": 1}'), ("now", "{}")]),
    ),
    (NEMOTRON, "<TOOLCALL>[]</TOOLCALL>", Answer(content="<TOOLCALL>[]</TOOLCALL>")),
    (
        OLMO,
        "I ask.<function_calls>add(a=1, b='it\\'s', c={\"d\": [True, null]})\n\nnow()"
        "</function_calls>So",
        Answer(
            "",
            "I ask.So",
            [("add", '{"a": 1, "b": "it\'s", "c": {"d": [true, null]}}'), ("now", "{}")],
        ),
    ),
    (OLMO, "<function_calls>a b", Answer(content="<function_calls>a b")),
    (FUNCTOOLS, "Import functools.", Answer(content="Import functools.")),
    (
        GRANITE_3,
        '<|tool_call|> [{"name": "add", "arguments": {"a": 1}}]',
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    (
        LLAMA_4,
        "<|python_start|>[add(a=1), get_weather()]<|python_end|>",
        Answer(calls=[("add", '{"a": 1}'), ("get_weather", "{}")]),
    ),
    (
        LLAMA_4,
        "I ask: <|python_start|>[add(a='x')]<|python_end|> So",
        Answer("", "I ask:So", [("add", '{"a": "x"}')]),
    ),
    (LLAMA_4, "[add(a=1)]", Answer(calls=[("add", '{"a": 1}')])),
    (LLAMA_4, "[1, 2]", Answer(content="[1, 2]")),
    (
        LLAMA_4_JSON,
        '<|python_start|>{"name": "add", "parameters": {"a": 1}}<|python_end|>',
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    (
        LLAMA_4_JSON,
        '{"name": "add", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}}',
        Answer(calls=[("add", '{"a": 1}'), ("get_weather", "{}")]),
    ),
    (
        OSS,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi!",
        Answer("Hm.", "Hi!"),
    ),
    (
        OSS,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
        '{"a": "<|end|>}"} <|call|>',
        Answer("Hm.\n\nSo.", "I look.", [("add", '{"a": "<|end|>}"}')]),
    ),
    (
        OSS,
        " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"
        "<|start|>assistant to=add<|channel|>analysis code<|message|>\n<|call|>",
        Answer(calls=[("get_weather", "{}"), ("add", "{}")]),
    ),
    (
        OSS,
        "<|channel|>commentary to=browser.search<|message|>{}<|end|>"
        "<|start|>assistant<|channel|>final<|message|>a<|return|>",
        Answer(content="{}\n\na"),
    ),
    (OSS, "<|channel|>commentary to=functions.add<|message|>x=1", Answer(content="x=1")),
    (OSS, '{"a": 1}', Answer(content='{"a": 1}')),
    (OSS, "to=5", Answer(content="to=5")),
    (OSS, "<|channel|>final<|message|>a<|e", Answer(content="a<|e")),
    (OSS, "<|channel|>final<|message|>a<|start|>assistant<|chan", Answer(content="a")),
    (
        OSS_ALONE,
        "<|channel|>commentary to=functions.add<|message|>{}<|call|>",
        Answer(content="{}"),
    ),
    (
        OSS_HIDDEN,
        "<|channel|>analysis<|message|>Hm.<|end|><|channel|>analysis<|message|>So.<|end|>"
        "<|channel|>final<|message|>Hi!<|return|>",
        Answer(content="Hi!"),
    ),
]


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("qwen25", "hermes"),
        ("qwen3_coder", "qwen3-coder"),
        ("deepseekv31", "deepseek_v31"),
        ("glm", "glm45"),
        ("glm47", "glm47"),
        ("minimax-m2", "minimax_m2"),
        ("deepseekv32", "deepseek_v32"),
        ("phi4_mini_json", "functools"),
    ],
)
def test_names_of_others_are_taken(name: str, tools: str) -> None:
    assert TOOL_PARSERS.chosen(name).name == tools


def test_a_header_without_an_end_is_content() -> None:
    text = "<|channel|>" + "x" * 2000
    assert read(OSS, text) == Answer(content=text)
    assert read(OSS, *text) == Answer(content=text)


def test_a_key_without_an_end_is_no_argument() -> None:
    key = "x" * 600
    for text in (f"call:add{{{key}:1}}", f"call:add{{{key}"):
        call = f"<start_function_call>{text}"
        assert read(FUNCTION_GEMMA, call).calls == [("add", "{}")]
        assert read(FUNCTION_GEMMA, *call) == read(FUNCTION_GEMMA, call)


@pytest.mark.parametrize(
    ("answer", "head", "rest"),
    [
        (PYTHONIC, "[add(", "<x"),
        (CODER, "<tool_call><function=add>", "</tool_call>"),
        (FUNCTION_GEMMA, "<start_function_call>call:add{", "]x"),
        (CODER, "<tool_call><function=add><tool_call><function=add>", "<tool_call>"),
    ],
)
def test_arguments_that_something_else_closes_are_told_once(
    answer: AnswerFormat, head: str, rest: str
) -> None:
    """Also to who has heard of the call alone, whose text ends where they begin."""
    whole = read(answer, head + rest)
    assert {*whole.calls} == {("add", "{}")}
    assert read(answer, *(head + rest)) == whole
    parser = answer_parser(answer)
    so_far = Answer()
    for char in head + rest:
        so_far.add(parser.feed(char))
        resumed = answer_parser(answer, num_emitted=parser.num_read)
        told = Answer(so_far.reasoning, so_far.content, list(so_far.calls))
        told.add(resumed.feed(head + rest))
        told.add(resumed.finish(is_cut=False))
        assert told == whole


@pytest.mark.parametrize(("answer", "text", "expected"), CASES)
def test_a_text_is_told_apart(answer: AnswerFormat, text: str, expected: Answer) -> None:
    assert read(answer, text) == expected


MIDDLE_LEN = 24  # longer than any mark: two cuts farther apart have nothing to do with each other


@pytest.mark.parametrize(("answer", "text", "expected"), CASES)
def test_every_cut_in_three_tells_the_same(
    answer: AnswerFormat, text: str, expected: Answer
) -> None:
    """Each pair of cuts, together with others that are too far away to matter."""
    period = 2 * MIDDLE_LEN + 1
    for first in range(min(len(text), period)):
        for second in range(first, first + MIDDLE_LEN + 1):
            cuts = [*range(first, len(text), period), *range(second, len(text), period)]
            places = pairwise([0, *sorted(cuts), len(text)])
            assert read(answer, *(text[start:end] for start, end in places)) == expected


def test_arguments_are_told_as_they_come() -> None:
    parser = answer_parser(HERMES)
    assert not parser.feed('<tool_call>{"name": "add", "argu')
    [call] = parser.feed('ments": {"a').calls
    assert (call.idx, call.name, call.arguments) == (0, "add", '{"a')
    [call] = parser.feed('": "x').calls
    assert (call.idx, call.name, call.arguments) == (0, "", '": "x')
    assert not parser.has_complete_calls
    assert parser.feed('"}}</tool_call>').calls[0].arguments == '"}'
    assert parser.has_complete_calls


@pytest.mark.parametrize(
    ("text", "is_cut", "expected"),
    [
        ('Hi <tool_call>{"name": "ad', True, Answer(content="Hi")),
        ('Hi <tool_call>{"name": "ad', False, Answer(content='Hi <tool_call>{"name": "ad')),
        ("Hi <tool_c", True, Answer(content="Hi <tool_c")),
        ('<tool_call>{"name": "add", "arguments": {"a', True, Answer(calls=[("add", '{"a')])),
    ],
)
def test_the_head_of_a_call_that_was_cut_is_no_content(
    text: str, is_cut: bool, expected: Answer
) -> None:
    assert read(HERMES, text, is_cut=is_cut) == expected


@pytest.mark.parametrize(("answer", "text", "expected"), CASES)
def test_of_a_call_that_must_be_made_nothing_is_content_when_it_is_cut(
    answer: AnswerFormat, text: str, expected: Answer
) -> None:
    """Wherever: a grammar lets nothing through that is no call."""
    if expected.content or not expected.calls:
        return
    alone = msgspec.structs.replace(answer, is_calls_alone=True)
    for end in range(len(text)):
        assert not read(alone, text[:end], is_cut=True).content


@pytest.mark.parametrize("is_cut", [True, False])
def test_an_argument_in_tags_is_told_when_it_is_whole(is_cut: bool) -> None:
    text = "<tool_call><function=add><parameter=a>1</parameter><parameter=b>2"
    assert read(CODER, text, is_cut=is_cut) == Answer(calls=[("add", '{"a": 1')])
    answer = read(PYTHONIC, "[add(a=1, b='x", is_cut=is_cut)
    assert answer == Answer(calls=[("add", '{"a": 1')])


def test_a_name_that_only_a_newer_build_has_is_no_parser() -> None:
    for newer in (AnswerFormat(tools="morse"), AnswerFormat(reasoning="morse")):
        with pytest.raises(MalformedMessage, match="parser of another build: 'morse'"):
            answer_parser(newer)


def test_names_are_chosen_also_as_others_have_them() -> None:
    for name, parser in (("llama3_json", "llama3"), ("qwen3_coder", "qwen3-coder")):
        assert TOOL_PARSERS.chosen(name).name == parser
    assert REASONING_PARSERS.chosen("qwen3").name == "think"
    with pytest.raises(ConfigError, match="no tool parser 'morse'; there are deepseek_v3, "):
        AnswerStyles("morse")
    with pytest.raises(ConfigError, match="no reasoning parser 'morse'; there are deepseek-r1, "):
        AnswerStyles(reasoning_parser="morse")


def test_old_names_are_stored_under_any_feature_level() -> None:
    """A frontend of the build before reads what it knows; the rest waits until it has gone."""
    old = {"hermes", "llama3", "mistral", "mistral-args", "qwen3-coder", "json", "think"}
    newest = {"seed_oss", "nemotron", "olmo3", "deepseek_v32"}
    for parser in (*TOOL_PARSERS, *REASONING_PARSERS):
        assert parser.level == (1 if parser.name in old else 4 if parser.name in newest else 3)
    assert AnswerParsers.of(QWEN3).needed_level == 1
    assert AnswerParsers.of(DEEPSEEK).needed_level == 3


# Texts that come close to every mark.
PARTS = """<tool_call> </tool_call> <think> </think> [THINK] [/THINK] [TOOL_CALLS] [ARGS]
    <function=add> <parameter=a> </parameter> </function>
    <|python_tag|> [CALL_ID] {"name": "add", "arguments": "parameters": {"a": 1} "id": add
    {"name":"add","arguments":{"b":"}\\""}} {"name":"add","parameters":{}} {"name":"add"} :
    {} } ] [ , ; " \\ é 🙂 < <to x ' ( ) [add( a=1 b=' =
    function ```json ``` <arg_key> </arg_key> <arg_value> </arg_value> functions.add:0
    <|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_end|>
    <|tool_call_argument_begin|> <minimax:tool_call> </minimax:tool_call> <invoke
    </invoke> <|start|> <|channel|> <|message|> <|end|> <|call|> <|return|> <|constrain|>json
    <start_function_call> <end_function_call> <escape> <|tool_call> <tool_call|> <|"|> call:add{
    a: call: <|tool_call|> <|/tool_call|> functools <|python_start|> <|python_end|>
    <|channel>thought <channel|> assistant analysis final commentary to=functions.add
    <seed:tool_call> </seed:tool_call> <seed:think> </seed:think> <TOOLCALL> </TOOLCALL>
    <function_calls> </function_calls> add(a=1) to=now""".split()  # noqa: SIM905
SPACED = (
    "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>",
    " to=functions.add<|channel|>commentary<|message|>",
    '<invoke name="add">', '<parameter name="a">',
    " ", "\n", '{"name": "get_weather", "arguments": ', "Here is my thought process:",
    "Here's my response:", CALLS, CALLS_END, CALL_BEGIN, CALL_END, SEP, CALLS[:9], CALLS[1:],
    CALLS[:-1],
    f"<{DSML}function_calls>", f"</{DSML}function_calls>", f'<{DSML}invoke name="add">',
    f"</{DSML}invoke>", f'<{DSML}parameter name="a" string="', 'true">', 'false">',
    f"</{DSML}parameter>",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from([*PARTS, *SPACED]), max_size=14).map("".join)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(answer=st.sampled_from(FORMATS), text=TEXTS, is_cut=st.booleans(), data=st.data())
def test_the_pieces_do_not_matter_and_any_event_can_be_resumed_from(
    answer: AnswerFormat, text: str, is_cut: bool, data: st.DataObject
) -> None:
    whole = read(answer, text, is_cut=is_cut)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(answer, *pieces, is_cut=is_cut) == whole
    parser, so_far = answer_parser(answer), Answer()
    for piece in [*pieces, None]:
        if piece is None:
            so_far.add(parser.finish(is_cut=is_cut))
        else:
            so_far.add(parser.feed(piece))
        again = answer_parser(answer, num_emitted=parser.num_read)
        rest = Answer(so_far.reasoning, so_far.content, list(so_far.calls))
        for other in data.draw(st.sampled_from([[text], list(text)])):
            rest.add(again.feed(other))
        rest.add(again.finish(is_cut=is_cut))
        assert rest == whole
    assert so_far == whole
