"""Conversations with tools through the templates that models are published with, and back."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.models.chat_template import ChatTemplate
from frontend.surfaces.responses.conversation import messages_of
from frontend.surfaces.tools.tool_messages import for_template
from shared.errors import InvalidRequest
from shared.protocol.reply import AnswerFormat
from tests.frontend import published_templates as published
from tests.frontend.surfaces.test_answer_parser import (
    CALL_BEGIN,
    CALL_END,
    CALLS,
    CALLS_END,
    SEP,
    Answer,
    read,
)

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {"name": "get_weather", "arguments": '{"city": "Osl\u00f3"}'}
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "call_1", **CALL},
    {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
]
# Source, styles, how the call stands in the next prompt, and an answer with the same call.
FAMILIES = {
    "qwen 2.5": (
        published.QWEN_2_5,
        "hermes",
        None,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Osl\u00f3"}}\n</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Osl\u00f3"}}\n</tool_call>',
    ),
    "qwen 3": (
        published.QWEN_3,
        "hermes",
        "think",
        '<think>\nHm.\n</think>\n\n\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Osl\u00f3"}}\n</tool_call>',
        '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Osl\u00f3"}}\n</tool_call>',
    ),
    "qwen 3 coder": (
        published.QWEN_3_CODER,
        "qwen3-coder",
        None,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOsl\u00f3\n</parameter>\n</function>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOsl\u00f3\n</parameter>\n"
        "</function>\n</tool_call>",
    ),
    "llama 3.1": (
        published.LLAMA_3_1,
        "llama3",
        None,
        '{"name": "get_weather", "parameters": {"city": "Osl\u00f3"}}<|eot_id|>',
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Osl\u00f3"}}',
    ),
    "mistral v3": (
        published.MISTRAL_V3,
        "mistral",
        None,
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Osl\u00f3"}, "id": "',
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Osl\u00f3"}, '
        '"id": "abcdefghi"}]',
    ),
    "deepseek v3.1": (
        published.DEEPSEEK_V3_1,
        "deepseek_v31",
        "think",
        f'{CALLS}{CALL_BEGIN}get_weather{SEP}{{"city": "Osl\u00f3"}}{CALL_END}{CALLS_END}</s>',
        "<think>Hm.</think>"
        f'{CALLS}{CALL_BEGIN}get_weather{SEP}{{"city": "Osl\u00f3"}}{CALL_END}{CALLS_END}',
    ),
}
GLM_CALL = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Osl\u00f3</arg_value>\n"
    "</tool_call>"
)
KIMI_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "Osl\u00f3"}<|tool_call_end|><|tool_calls_section_end|>'
)
MINIMAX_CALL = (
    '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Osl\u00f3</parameter>'
    "\n</invoke>\n</minimax:tool_call>"
)
FAMILIES |= {
    "kimi k2": (
        published.KIMI_K2_THINKING,
        "kimi_k2",
        "think",
        f"<think>Hm.</think>{KIMI_CALL}<|im_end|><|im_system|>tool<|im_middle|>"
        "## Return of functions.get_weather:0\nrain",
        f"<think>Hm.</think>{KIMI_CALL}",
    ),
    "glm 4.6": (
        published.GLM_4_6,
        "glm45",
        "think",
        f"<think>Hm.</think>\n{GLM_CALL}<|obs",
        f"<think>Hm.</think>\n{GLM_CALL}",
    ),
    "glm 4.7": (
        published.GLM_4_7,
        "glm47",
        "think",
        GLM_CALL.replace("\n", ""),
        f"<think>Hm.</think>{GLM_CALL}".replace("\n", ""),
    ),
    "gpt-oss": (
        published.GPT_OSS,
        "gpt_oss",
        "gpt_oss",
        "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant "
        'to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Osl\u00f3"}<|call|>'
        "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>rain<|end|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Osl\u00f3"}',
    ),
    "phi 4 mini": (
        published.PHI_4_MINI,
        "phi4_mini",
        None,
        '<|assistant|><|tool_call|>[{"name": "get_weather", "arguments": {"city": "Osl\u00f3"}}]'
        "<|/tool_call|><|end|><|tool_response|>rain<|end|>",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Osl\u00f3"}}]<|/tool_call|>',
    ),
    "granite 3": (
        published.GRANITE_3,
        "granite",
        None,
        '<|end_of_role|><|tool_call|>[{"name": "get_weather", "arguments": {"city": "Osl\u00f3"}}]'
        "<|end_of_text|>\n<|start_of_role|>tool_response<|end_of_role|>rain",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Osl\u00f3"}}]',
    ),
    "functiongemma": (
        published.FUNCTION_GEMMA,
        "functiongemma",
        None,
        "<start_function_call>call:get_weather{city:<escape>Osl\u00f3<escape>}<end_function_call>"
        "<end_of_turn><start_function_response>response:get_weather{value:<escape>rain<escape>}",
        "<start_function_call>call:get_weather{city:<escape>Osl\u00f3<escape>}<end_function_call>",
    ),
    "minimax m2": (
        published.MINIMAX_M2,
        "minimax_m2",
        "think",
        f"<think>\nHm.\n</think>\n\n\n{MINIMAX_CALL}[e~[",
        f"<think>\nHm.\n</think>\n\n{MINIMAX_CALL}",
    ),
}


def parsers_of(template: ChatTemplate) -> tuple[str | None, str | None]:
    """The names of those that fit it."""
    tools, reasoning = template.tool_parser, template.reasoning_parser
    return (
        None if tools is None else tools.name,
        None if reasoning is None else reasoning.name,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_goes_there_and_back(family: str) -> None:
    source, tools, reasoning, told, answer = FAMILIES[family]
    template = ChatTemplate(source, SPECIAL)
    assert parsers_of(template) == (tools, reasoning)
    messages = for_template(template, messages_of(ITEMS, None), TOOLS, template.tool_parser)
    prompt = template.render(messages, kwargs={"tools": TOOLS})
    assert told in prompt
    assert "rain" in prompt[prompt.index(told) :]
    assert "Of a city." in prompt
    form = AnswerFormat(tools=tools, tool_names=("get_weather",), reasoning=reasoning)
    thought = "Hm." if reasoning else ""
    assert read(form, answer) == Answer(thought, "", [(CALL["name"], CALL["arguments"])])


def test_templates_of_other_calls_are_known_as_such() -> None:
    deepseek = ChatTemplate(published.DEEPSEEK_R1, SPECIAL)
    assert parsers_of(deepseek) == (None, "think")
    for mark, tools in (
        ("<|tool_call>", "gemma4"),
        ("functools[", "functools"),
        ("<TOOLCALL>[", "nemotron"),
        ("<seed:tool_call>\n<function=", "seed_oss"),
        ("{{ messages[0].tool_calls }}<function_calls>", "olmo3"),
        ("<|python_start|>[func_name1(", "llama4_pythonic"),
        ('<|python_start|>ipython"parameters"', "llama4_json"),
        ("[TOOL_CALLS][CALL_ID][ARGS]", "mistral-call-id"),
    ):
        assert parsers_of(ChatTemplate(f"{{{{ tools }}}}{mark}", SPECIAL)) == (tools, None)
    for mark in ("<|channel|>commentary", "<|action_start|>"):
        assert parsers_of(ChatTemplate(f"{{{{ tools }}}}{mark}", SPECIAL)) == (None, None)
    assert parsers_of(ChatTemplate("{{ messages[0].content }}", SPECIAL)) == ("json", None)


def test_qwen_3_hears_whether_to_think() -> None:
    template = ChatTemplate(published.QWEN_3, SPECIAL)
    assert template.effort_names == {"enable_thinking"}
    ask = [{"role": "user", "content": "Hi"}]
    assert template.render(ask).endswith("assistant\n")
    assert template.render(ask, kwargs={"enable_thinking": False}).endswith("</think>\n\n")


def test_gpt_oss_hears_of_each_call_with_its_result() -> None:
    """Its template shows one call a message; content beside what it thought would be refused."""
    calls: list[dict[str, Any]] = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": {}}}
        for name in ("one", "two")
    ]
    asked = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm."}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Go"},
        {**asked, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "two", "content": "second"},
        {"role": "tool", "tool_call_id": "one", "content": "first"},
        {"role": "assistant", "content": "Done."},
    ]
    template = ChatTemplate(published.GPT_OSS, SPECIAL)
    told = template.render(for_template(template, messages, [], None))
    said = [part.partition("<|end|>")[0] for part in told.split("<|message|>")[3:]]
    assert [text.partition("<|call|>")[0] for text in said] == [
        "Hm.\n\nI look.", "{}", "first", "{}", "second", "Done.",
    ]  # fmt: skip
    assert template.effort_names == {"reasoning_effort"}


def test_what_a_template_refuses_is_told_in_its_words() -> None:
    """Llama 3.1 takes one call a turn."""
    template = ChatTemplate(published.LLAMA_3_1, SPECIAL)
    second = {"type": "function_call", "call_id": "call_2", **CALL}
    messages = messages_of([*ITEMS[:3], second, ITEMS[3]], None)
    with pytest.raises(InvalidRequest, match="single tool-calls"):
        template.render(messages, kwargs={"tools": TOOLS})
