"""Templates render as transformers renders them, and cannot reach out of their sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.models.chat_template import ChatTemplate
from shared.errors import ConfigError, InvalidRequest
from tests.frontend.tiny_model import CHATML

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

# The shapes that published templates have, each with what is peculiar to it.
TEMPLATES = {
    "chatml": CHATML,
    "bos_and_header": (
        "{{- bos_token }}\n"
        "{%- if not date_string is defined %}"
        "{% set date_string = strftime_now('%d %b %Y') %}{% endif %}\n"
        "{%- if messages[0]['role'] == 'system' %}\n"
        "    {%- set system_message = messages[0]['content']|trim %}\n"
        "    {%- set messages = messages[1:] %}\n"
        "{%- else %}{%- set system_message = '' %}{%- endif %}\n"
        "<|header|>system\n\nToday Date: {{ date_string }}\n{{ system_message }}<|eot|>\n"
        "{%- for message in messages %}\n"
        "    {{- '<|header|>' + message['role'] + '\\n\\n'"
        "+ message['content'] | trim + '<|eot|>' }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{- '<|header|>assistant\\n\\n' }}{%- endif %}\n"
    ),
    "alternating_roles": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
    ),
    "namespace_and_thinking": (
        "{%- set ns = namespace(last=-1, multi=true) %}\n"
        "{%- for message in messages[::-1] %}\n"
        "    {%- set index = (messages|length - 1) - loop.index0 %}\n"
        "    {%- if ns.multi and message.role == 'user' %}\n"
        "        {%- set ns.multi = false %}{%- set ns.last = index %}\n"
        "    {%- endif %}\n"
        "{%- endfor %}\n"
        "{%- for message in messages %}\n"
        "    {%- set content = message.content %}\n"
        "    {%- if '</think>' in content %}\n"
        "        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n"
        "    {%- endif %}\n"
        "    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n"
        "    {{- '<|im_start|>assistant\\n' }}\n"
        "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
        "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
        "    {%- endif %}\n"
        "{%- endif %}"
    ),
    "tool_calls": (
        "{%- for message in messages %}"
        "{%- if message.tool_calls %}{%- for call in message.tool_calls %}"
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
        "{%- endfor %}{%- else %}{{ message.role }}: {{ message.content | tojson(indent=2) }};"
        "{%- endif %}{%- endfor %}"
        "{%- if tools is not none %}{{ tools | tojson }}{%- endif %}"
    ),
    "loop_controls": (
        "{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}"
        "{{ message.content }}|{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}"
    ),
    "generation_tag": (
        "{% for message in messages %}{% if message.role == 'assistant' %}"
        "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}\n"
        "{% else %}{{ message.content }}\n{% endif %}{% endfor %}"
    ),
    "macro_and_dict": (
        "{% macro turn(role, text) %}<{{ role }}>{{ text }}</{{ role }}>{% endmacro %}"
        "{% set names = dict(user='human', assistant='bot', system='sys') %}"
        "{% for message in messages %}{{ turn(names[message.role], message.content) }}{% endfor %}"
        "{{ names.items() | list | length }}"
    ),
    "blank_lines": (
        "\n  {% for message in messages %}\n    {{ message.content }}\n  {% endfor %}\n\n"
        "{# a comment #}\n  {% if add_generation_prompt %}\n  go\n  {% endif %}\nend\n"
    ),
}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hi <b>&amp; \"you\"</b> 'é' 🙂\n"}],
    "three": [
        {"role": "user", "content": " a "},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ],
    "system": [
        {"role": "system", "content": " Be kind. \n"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "{{ 7 * 7 }}"},
    ],
    "tools": [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"ä": [1, None], "b": "<"}}}],
        },
    ],
}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_as_transformers_renders(
    template: str, conversation: str, add_generation_prompt: bool
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source, messages = TEMPLATES[template], CONVERSATIONS[conversation]
    kwargs = {"enable_thinking": False}
    try:
        variables: dict[str, Any] = {**TOKENS, **kwargs}
        rendered: Any = render_jinja_template(
            [messages],
            chat_template=source,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
        expected = rendered[0][0]
    except Exception as exc:
        with pytest.raises(InvalidRequest, match="chat template") as caught:
            render(source, messages, add_generation_prompt, kwargs)
        assert str(exc) in caught.value.message  # noqa: PT017
    else:
        assert render(source, messages, add_generation_prompt, kwargs) == expected


def render(
    source: str, messages: list[dict[str, Any]], add_generation_prompt: bool, kwargs: dict[str, Any]
) -> str:
    template = ChatTemplate(source, TOKENS)
    return template.render(messages, add_generation_prompt=add_generation_prompt, kwargs=kwargs)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% include 'x' %}",
        "{{ undefined_name.attribute }}",
        "{{ 1 / 0 }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source, TOKENS).render([{"role": "user", "content": "x"}])


def test_a_broken_template_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        ChatTemplate("{% for %}", TOKENS)


def test_the_end_of_a_continued_message_is_the_end() -> None:
    template = ChatTemplate(TEMPLATES["bos_and_header"], TOKENS)
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once upon "}]
    text = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("assistant\n\nOnce upon ")
    with pytest.raises(InvalidRequest, match="final message"):
        template.render([{"role": "assistant", "content": ""}], continue_final_message=True)
    with pytest.raises(InvalidRequest, match="does not work"):
        ChatTemplate("fixed", {}).render(messages, continue_final_message=True)
