"""Chat templates in the shape in which model families publish them, retold and shortened.

What is kept: the marks, where tools, calls, results and thoughts stand, and what is refused.
"""

from __future__ import annotations

_CALLS_IN_TAGS = (
    "{%- for call in message.tool_calls %}{%- set f = call.function if call.function else call %}"
    '{{- \'\\n<tool_call>\\n{"name": "\' + f.name + \'", "arguments": \' }}'
    "{{- f.arguments if f.arguments is string else f.arguments | tojson }}"
    "{{- '}\\n</tool_call>' }}{%- endfor %}"
)
_TOOLS_IN_TAGS = (
    "{{- '\\n\\nYou may call functions. Their signatures are within <tools></tools>:\\n<tools>' }}"
    "{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}"
    "{{- '\\n</tools>\\n\\nFor each call, return a JSON object within <tool_call></tool_call>:\\n"
    '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>\' }}'
)
_RESULT_IN_TAGS = (
    "{%- elif message.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}"
    "{%- endif %}{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}"
    "{%- endif %}{%- endif %}{%- endfor %}"
)
_SYSTEM = (
    "{%- set first = messages[0].content if messages[0].role == 'system' else 'Be helpful.' %}"
    "{{- '<|im_start|>system\\n' + first }}{%- if tools %}"
    + _TOOLS_IN_TAGS
    + "{%- endif %}{{- '<|im_end|>\\n' }}{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' %}"
)
# Qwen 2.5, and Hermes 2 and 3.
QWEN_2_5 = (
    _SYSTEM
    + "{{- '<|im_start|>assistant' }}{%- if message.content %}{{- '\\n' + message.content }}"
    "{%- endif %}{%- if message.tool_calls %}"
    + _CALLS_IN_TAGS
    + "{%- endif %}{{- '<|im_end|>\\n' }}"
    + _RESULT_IN_TAGS
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Thinks, unless it is told not to; thoughts before the last question are left out.
QWEN_3 = (
    "{%- set ns = namespace(last=messages | length - 1) %}{%- for m in messages[::-1] %}"
    "{%- set idx = messages | length - 1 - loop.index0 %}"
    "{%- if m.role == 'user' and ns.last == messages | length - 1 %}{%- set ns.last = idx %}"
    "{%- endif %}{%- endfor %}"
    + _SYSTEM
    + "{%- set content = message.content %}{%- set thought = message.reasoning_content or '' %}"
    "{%- if '</think>' in content %}{%- set thought = content.split('</think>')[0] %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{{- '<|im_start|>assistant\\n' }}{%- if thought and loop.index0 > ns.last %}"
    "{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}{{- content }}"
    "{%- if message.tool_calls %}"
    + _CALLS_IN_TAGS
    + "{%- endif %}{{- '<|im_end|>\\n' }}"
    + _RESULT_IN_TAGS
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)
# Calls are not JSON: each argument has tags of its own.
QWEN_3_CODER = (
    "{{- '<|im_start|>system\\nBe helpful.' }}{%- if tools %}{{- '\\n\\n# Tools\\n\\n<tools>' }}"
    "{%- for tool in tools %}{%- set f = tool.function %}"
    "{{- '\\n<function>\\n<name>' + f.name + '</name>' }}"
    "{%- if f.description is defined %}"
    "{{- '\\n<description>' + f.description + '</description>' }}"
    "{%- endif %}{{- '\\n<parameters>' }}{%- if f.parameters is mapping %}"
    "{%- for name, field in (f.parameters.properties or {}).items() %}"
    "{{- '\\n<parameter>\\n<name>' + name + '</name>' }}"
    "{{- '\\n<type>' + (field.type | string) + '</type>\\n</parameter>' }}"
    "{%- endfor %}{%- endif %}{{- '\\n</parameters>\\n</function>' }}{%- endfor %}"
    "{{- '\\n</tools>\\n\\nTo call, reply so:\\n\\n<tool_call>\\n"
    "<function=example_function_name>\\n"
    "<parameter=example_parameter_1>\\nvalue_1\\n</parameter>\\n</function>\\n</tool_call>' }}"
    "{%- endif %}{{- '<|im_end|>\\n' }}{%- for message in messages %}"
    "{%- if message.role == 'user' or message.role == 'system' %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- elif message.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\\n' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}{%- set f = call.function %}"
    "{{- '\\n<tool_call>\\n<function=' + f.name + '>\\n' }}"
    "{%- for name, value in f.arguments | items %}{{- '<parameter=' + name + '>\\n' }}"
    "{{- value | tojson | safe if value is mapping or value is sequence and value is not string "
    "else value | string }}{{- '\\n</parameter>\\n' }}{%- endfor %}"
    "{{- '</function>\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    + _RESULT_IN_TAGS
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# One call a turn, behind no mark or <|python_tag|>; tools stand with the first question.
LLAMA_3_1 = (
    "{{- bos_token }}{%- if messages[0].role == 'system' %}"
    "{%- set system = messages[0].content | trim %}{%- set messages = messages[1:] %}{%- else %}"
    "{%- set system = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
    "{%- if tools is not none %}{{- 'Environment: ipython\\n' }}{%- endif %}"
    "{{- 'Cutting Knowledge Date: December 2023\\n\\n' + system + '<|eot_id|>' }}"
    "{%- if tools is not none %}{%- set first = messages[0].content | trim %}"
    "{%- set messages = messages[1:] %}"
    "{{- '<|start_header_id|>user<|end_header_id|>\\n\\nGiven these functions, call one.\\n' }}"
    '{{- \'Respond in the format {"name": function name, "parameters": dictionary of argument '
    "name and its value}.\\n\\n' }}"
    "{%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}"
    "{{- first + '<|eot_id|>' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}"
    "{{- message.content | trim + '<|eot_id|>' }}"
    "{%- elif 'tool_calls' in message %}{%- if not message.tool_calls | length == 1 %}"
    "{{- raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}"
    "{%- set call = message.tool_calls[0].function %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
    "{{- '{\"name\": \"' + call.name + '\", ' }}{{- '\"parameters\": ' }}"
    "{{- call.arguments | tojson }}{{- '}' }}{{- '<|eot_id|>' }}"
    "{%- elif message.role == 'tool' or message.role == 'ipython' %}"
    "{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}"
    "{%- if message.content is mapping or message.content is iterable %}"
    "{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}"
    "{{- '<|eot_id|>' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
# Ids of nine characters; tools stand before the last question; turns take turns.
MISTRAL_V3 = (
    "{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}"
    "{%- set turns = messages[1:] %}{%- else %}{%- set turns = messages %}{%- endif %}"
    "{%- set users = turns | selectattr('role', 'equalto', 'user') | list %}"
    "{%- set ns = namespace(index=0) %}{%- for message in turns %}"
    "{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}"
    "{%- if (message.role == 'user') != (ns.index % 2 == 0) %}"
    "{{- raise_exception('After the optional system message, roles must alternate') }}"
    "{%- endif %}{%- set ns.index = ns.index + 1 %}{%- endif %}{%- endfor %}{{- bos_token }}"
    "{%- for message in turns %}{%- if message.role == 'user' %}"
    "{%- if tools is not none and message == users[-1] %}{{- '[AVAILABLE_TOOLS] [' }}"
    "{%- for tool in tools %}{{- tool | tojson }}{{- ', ' if not loop.last }}{%- endfor %}"
    "{{- '][/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST] ' + (system + '\\n\\n' if loop.last and system is defined else '') }}"
    "{{- message.content + '[/INST]' }}"
    "{%- elif message.tool_calls is defined and message.tool_calls is not none %}"
    "{{- '[TOOL_CALLS] [' }}{%- for call in message.tool_calls %}"
    '{{- \'{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}"
    "{%- if call.id is undefined or call.id | length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}"
    "{%- endif %}{{- ', \"id\": \"' + call.id + '\"}' }}{{- ', ' if not loop.last }}"
    "{%- endfor %}{{- ']' + eos_token }}"
    "{%- elif message.role == 'assistant' %}{{- ' ' + message.content | trim + eos_token }}"
    "{%- elif message.role == 'tool' %}"
    "{%- if message.tool_call_id is undefined or message.tool_call_id | length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}"
    "{%- endif %}{{- '[TOOL_RESULTS] {\"content\": ' + message.content | string }}"
    "{{- ', \"call_id\": \"' + message.tool_call_id + '\"}[/TOOL_RESULTS]' }}"
    "{%- else %}{{- raise_exception('Only user and assistant roles are supported') }}"
    "{%- endif %}{%- endfor %}"
)
# Begins its answer inside the thought; calls in marks of its own.
DEEPSEEK_R1 = (
    "{{- bos_token }}{%- for message in messages %}{%- if message.role == 'user' %}"
    "{{- '<\uff5cUser\uff5c>' + message.content }}{%- elif message.role == 'assistant' %}"
    "{%- set content = message.content %}{%- if '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1] %}{%- endif %}"
    "{{- '<\uff5cAssistant\uff5c>' + content + eos_token }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<\uff5ctool\u2581calls\u2581begin\uff5c>' + call.function.name }}{%- endfor %}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<\uff5cAssistant\uff5c><think>\\n' }}{%- endif %}"
)

# The excerpt that vLLM publishes for tools with V3.1.
DEEPSEEK_V3_1 = (
    "{{- bos_token }}{%- if tools %}{{- '## Tools\\n' }}{%- for tool in tools %}"
    "{{- tool.function.name + ': ' + tool.function.description + '\\n' }}{%- endfor %}{%- endif %}"
    "{%- for message in messages %}{%- if message['role'] == 'user' %}"
    "{{- '<\uff5cUser\uff5c>' + message['content'] }}"
    "{%- elif message['role'] == 'assistant' and message['tool_calls'] %}"
    "{{- '<\uff5cAssistant\uff5c></think><\uff5ctool\u2581calls\u2581begin\uff5c>' }}"
    "{%- for tool in message['tool_calls'] %}{{- '<\uff5ctool\u2581call\u2581begin\uff5c>'"
    " + tool['function']['name'] + '<\uff5ctool\u2581sep\uff5c>' + tool['function']['arguments']"
    " + '<\uff5ctool\u2581call\u2581end\uff5c>' }}{%- endfor %}"
    "{{- '<\uff5ctool\u2581calls\u2581end\uff5c>' + eos_token }}"
    "{%- elif message['role'] == 'tool' %}{{- '<\uff5ctool\u2581output\u2581begin\uff5c>'"
    " + message['content'] + '<\uff5ctool\u2581output\u2581end\uff5c>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<\uff5cAssistant\uff5c></think>' }}{%- endif %}"
)

# Calls are told by their ids alone.
KIMI_K2_THINKING = (
    "{%- if tools -%}{{- '<|im_system|>tool_declare<|im_middle|>' + tools | tojson }}"
    "{{- '<|im_end|>' }}{%- endif -%}{%- for message in messages -%}"
    "{{- '<|im_' + (message.role if message.role in ['user', 'assistant'] else 'system') + '|>' }}"
    "{{- message.role + '<|im_middle|>' }}"
    "{%- if message.role == 'assistant' -%}"
    "{{- '<think>' + (message.reasoning_content or '') + '</think>' + (message.content or '') }}"
    "{%- if message.get('tool_calls') -%}{{- '<|tool_calls_section_begin|>' }}"
    "{%- for call in message.tool_calls -%}"
    "{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}"
    "{{- call.function.arguments if call.function.arguments is string else "
    "call.function.arguments | tojson }}{{- '<|tool_call_end|>' }}{%- endfor -%}"
    "{{- '<|tool_calls_section_end|>' }}{%- endif -%}"
    "{%- elif message.role == 'tool' -%}"
    "{{- '## Return of ' + message.tool_call_id + '\\n' + message.content }}"
    "{%- else -%}{{- message.content }}{%- endif -%}{{- '<|im_end|>' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' }}{%- endif -%}"
)


def _glm(line: str) -> str:
    """`line`: what stands between the marks of a call."""
    form = f"{{f}}{line}<arg_key>{{k}}</arg_key>{line}<arg_value>{{v}}</arg_value>{line}"
    return (
        "{{- '[gMASK]<sop>' }}{%- if tools -%}{{- '<|system|>\\n<tools>\\n' }}"
        "{%- for tool in tools %}{{- tool | tojson(ensure_ascii=False) + '\\n' }}{%- endfor %}"
        f"{{{{- '</tools>\\n<tool_call>{form}</tool_call>' }}}}{{%- endif -%}}"
        "{%- for m in messages %}{%- if m.role == 'user' %}{{- '<|user|>\\n' + m.content }}"
        "{%- elif m.role == 'assistant' %}{{- '<|assistant|>\\n<think>' }}"
        "{{- (m.reasoning_content or '') + '</think>' }}"
        "{%- if m.content %}{{- '\\n' + m.content }}{%- endif %}"
        "{%- for call in m.tool_calls or [] %}"
        f"{{{{- '\\n<tool_call>' + call.function.name + '{line}' }}}}"
        "{%- for k, v in call.function.arguments.items() %}"
        f"{{{{- '<arg_key>' + k + '</arg_key>{line}<arg_value>' }}}}"
        "{{- v if v is string else v | tojson(ensure_ascii=False) }}"
        f"{{{{- '</arg_value>{line}' }}}}{{%- endfor %}}{{{{- '</tool_call>' }}}}{{%- endfor %}}"
        "{%- elif m.role == 'tool' %}"
        "{{- '<|observation|>\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
        "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
    )


GLM_4_6, GLM_4_7 = _glm("\\n"), _glm("")
# Begins its answer inside the thought; a tool's answer must follow a call.
MINIMAX_M2 = (
    "{{- ']~!b[]~b]system\\n' }}{%- if tools %}{{- '<tools>\\n' }}{%- for tool in tools %}"
    "{{- '<tool>' + tool.function | tojson | string + '</tool>\\n' }}{%- endfor %}"
    "{{- '</tools>\\n<minimax:tool_call>\\n<invoke name=\"f\">\\n' }}"
    "{{- '<parameter name=\"k\">v</parameter>\\n</invoke>\\n</minimax:tool_call>' }}{%- endif %}"
    "{{- '[e~[\\n' }}{%- set last = namespace(name=none) %}{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}{{- ']~b]ai\\n' }}{%- if m.reasoning_content is string %}"
    "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{- m.content or '' }}"
    "{%- if m.tool_calls %}{{- '\\n<minimax:tool_call>\\n' }}{%- for call in m.tool_calls %}"
    "{{- '<invoke name=\"' + call.function.name + '\">\\n' }}"
    "{%- for k, v in call.function.arguments | items %}"
    "{{- '<parameter name=\"' + k + '\">' + (v if v is string else v | tojson | string) }}"
    "{{- '</parameter>\\n' }}{%- endfor %}{{- '</invoke>\\n' }}{%- endfor %}"
    "{{- '</minimax:tool_call>' }}{%- set last.name = m.tool_calls[-1].function.name %}{%- endif %}"
    "{{- '[e~[\\n' }}{%- elif m.role == 'tool' %}{%- if last.name is none %}"
    "{{- raise_exception('Message has tool role without a call before it') }}{%- endif %}"
    "{{- ']~b]tool\\n<response>' + m.content + '</response>[e~[\\n' }}"
    "{%- else %}{{- ']~b]' + m.role + '\\n' + m.content + '[e~[\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- ']~b]ai\\n<think>\\n' }}{%- endif %}"
)
# Messages in channels: one call a message, and beside it what was said or what was thought.
GPT_OSS = (
    "{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') }}"
    "{{- '\\n# Valid channels: analysis, commentary, final.<|end|>' }}{%- if tools %}"
    "{{- '<|start|>developer<|message|># Tools\\nnamespace functions {\\n' }}"
    "{%- for tool in tools %}{{- '// ' + tool.function.description + '\\ntype ' }}"
    "{{- tool.function.name + ' = (_: ' + (tool.function.parameters or {}) | tojson }}"
    "{{- ') => any;\\n' }}"
    "{%- endfor %}{{- '}<|end|>' }}{%- endif %}{%- set last = namespace(name=none) %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' and m.tool_calls %}"
    "{%- if m.content and m.thinking %}"
    "{{- raise_exception('Cannot pass both content and thinking beside tool calls') }}{%- endif %}"
    "{%- if m.content or m.thinking %}{{- '<|start|>assistant<|channel|>analysis<|message|>' }}"
    "{{- (m.content or m.thinking) + '<|end|>' }}{%- endif %}{%- set call = m.tool_calls[0] %}"
    "{{- '<|start|>assistant to=functions.' + call.function.name }}"
    "{{- '<|channel|>commentary json<|message|>' + call.function.arguments | tojson }}"
    "{{- '<|call|>' }}{%- set last.name = call.function.name %}"
    "{%- elif m.role == 'assistant' %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{%- elif m.role == 'tool' %}{%- if last.name is none %}"
    "{{- raise_exception('Message has tool role without a call before it') }}{%- endif %}"
    "{{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' }}"
    "{{- m.content + '<|end|>' }}"
    "{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
# Takes the tools, as a text, from the system message, and knows no calls.
PHI_4_MINI = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message "
    "and message['tools'] is not none %}{{ '<|system|>' + message['content'] + '<|tool|>' "
    "+ message['tools'] + '<|/tool|><|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' "
    "+ message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# Roles are told as they are.
GRANITE_3 = (
    "{%- if tools %}{{- '<|start_of_role|>system<|end_of_role|>When a tool is required, respond "
    "with <|tool_call|> and a JSON list of tools used.<|end_of_text|>\n' }}"
    "{{- '<|start_of_role|>tools<|end_of_role|>' + tools | tojson + '<|end_of_text|>\n' }}"
    "{%- endif %}{%- for message in messages %}{{- '<|start_of_role|>' + message['role'] "
    "+ '<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}{%- endfor %}"
)
_GEMMA_VALUE = (
    "{%- macro value(v) -%}{%- if v is string -%}<escape>{{ v }}<escape>{%- elif v is mapping -%}"
    "{ {%- for k, each in v.items() -%}{{ k }}:{{ value(each) }}{{ ',' if not loop.last }}"
    "{%- endfor -%} }{%- else -%}{{ v | tojson }}{%- endif -%}{%- endmacro -%}"
)
# A result says which function it is of.
FUNCTION_GEMMA = (
    _GEMMA_VALUE + "{{ bos_token }}{%- if tools %}{%- for tool in tools %}"
    "<start_function_declaration>declaration:{{ tool.function.name }}"
    "{description:{{ value(tool.function.description) }}}<end_function_declaration>"
    "{%- endfor %}{%- endif %}{%- for m in messages %}{%- if m.role == 'tool' %}"
    "{%- if 'name' not in m %}{{ raise_exception('name must be provided') }}{%- endif %}"
    "<start_function_response>response:{{ m.name }}{value:{{ value(m.content) }}}"
    "<end_function_response>{%- else %}<start_of_turn>{{ m.role }}\n{{ m.content }}"
    "{%- for call in m.tool_calls or [] %}<start_function_call>call:{{ call.function.name }}"
    "{{ value(call.function.arguments) }}<end_function_call>{%- endfor %}<end_of_turn>"
    "{%- endif %}{%- endfor %}"
)
