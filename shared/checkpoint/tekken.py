"""Mistral's tokenizer as its makers publish it (tekken.json), in the form of tokenizer.json."""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import Any, NamedTuple

from shared.checkpoint.json_file import read_json
from shared.checkpoint.ranked_words import ranked_bpe
from shared.errors import ConfigError
from shared.gguf.tokens.added_tokens import added_token, around_texts
from shared.gguf.tokens.bpe_tokenizer import PreTokenizer

TEKKEN_FILE = "tekken.json"
_BOS = "<s>"
# By rank, where the first versions of the file name none.
_EARLY_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
_SPECIAL = {
    "bos_token": _BOS,
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}


class _Parts(NamedTuple):
    """The parts of a chat template, where versions differ."""

    system: str | None  # None: it stands before the last user's words
    tools_at: str  # the user's message before which tools are told
    calls: str
    result: str
    has_thoughts: bool = False


_ARGUMENTS = "(f.arguments if f.arguments is string else f.arguments | tojson)"
_EACH_CALL = (
    "{%- for call in m.tool_calls %}{%- set f = call.function %}{{- '[TOOL_CALLS]' + f.name"
)
_LISTED_CALLS = (
    "{{- '[TOOL_CALLS][' }}{%- for call in m.tool_calls %}{%- set f = call.function %}"
    """{{- '{"name": ' + f.name | tojson + ', "arguments": ' + """
    + _ARGUMENTS
    + """ + (', "id": ' + call.id | tojson if call.id else '') + '}' }}"""
    "{{- ', ' if not loop.last }}{%- endfor %}{{- ']' }}"
)
_SYSTEM = "{{- '[SYSTEM_PROMPT]' }}{{- said(m.content) }}{{- '[/SYSTEM_PROMPT]' }}"
_RESULT_BY_ID = "m.tool_call_id + '[TOOL_CONTENT]' + content"
_JSON_RESULT = (
    """'{"content": ' + (content if content[:1] in ('{', '[') else content | tojson)"""
    """ + ', "call_id": ' + m.tool_call_id | tojson + '}'"""
)
_PARTS = {
    "v3": _Parts(None, "last", _LISTED_CALLS, _JSON_RESULT),
    "v7": _Parts(_SYSTEM, "last", _LISTED_CALLS, _RESULT_BY_ID),
    "v11": _Parts(
        _SYSTEM,
        "last",
        _EACH_CALL + " + ('[CALL_ID]' + call.id if call.id else '') + '[ARGS]' + "
        f"{_ARGUMENTS} }}}}{{%- endfor %}}",
        _RESULT_BY_ID,
    ),
    "v13": _Parts(
        _SYSTEM,
        "first",
        _EACH_CALL + f" + '[ARGS]' + {_ARGUMENTS} }}}}{{%- endfor %}}",
        "content",
        has_thoughts=True,
    ),
}
_THOUGHT = (
    "{%- if m.reasoning_content %}{{- '[THINK]' + m.reasoning_content + '[/THINK]' }}{%- endif %}"
)
_TOLD_WITH_USER = (
    "{%- if loop.index0 == ns.last and ns.system %}{{- ns.system + '\\n\\n' }}{%- endif %}"
)
_CHAT = """{{- bos_token }}
{%- set marks = {'image': '[IMG]', 'audio': '[BEGIN_AUDIO][AUDIO]'} %}
{%- macro said(content) %}
    {%- if content is string %}{{- content }}
    {%- else %}
        {%- for part in content or [] %}
            {{- part.text if part.type == 'text' else marks[part.type] }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- set ns = namespace(system='', first=-1, last=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- set ns.last = loop.index0 %}
        {%- if ns.first < 0 %}{%- set ns.first = loop.index0 %}{%- endif %}
    {%- elif m.role in ('system', 'developer') %}
        {%- set ns.system = ns.system + ('\\n\\n' if ns.system else '') + said(m.content) %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role in ('system', 'developer') %}<system>
    {%- elif m.role == 'user' %}
        {%- if tools and loop.index0 == ns.<tools_at> %}
            {{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' }}<told>{{- said(m.content) }}{{- '[/INST]' }}
    {%- elif m.role == 'tool' %}
        {%- set content = said(m.content) %}
        {{- '[TOOL_RESULTS]' + <result> + '[/TOOL_RESULTS]' }}
    {%- elif m.role == 'assistant' %}
        <thought>
        {%- if m.content %}{{- said(m.content).rstrip(' ') }}{%- endif %}
        {%- if m.tool_calls %}<calls>{%- endif %}
        {{- eos_token }}
    {%- else %}{{- raise_exception('roles are system, user, assistant and tool, not ' + m.role) }}
    {%- endif %}
{%- endfor %}"""


def tekken_files(path: Path) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json of a folder that has tekken.json.

    Raises ConfigError for a file that is not as its makers write it.
    """
    file = path / TEKKEN_FILE
    values = read_json(file, dict)
    config = values.get("config")
    early = [{"rank": rank, "token_str": text} for rank, text in enumerate(_EARLY_SPECIAL)]
    entries = values.get("special_tokens", early)
    if not isinstance(config, dict) or not isinstance(config.get("pattern"), str):
        raise ConfigError(f"{file}: 'config' has no 'pattern', by which texts are cut")
    if not isinstance(entries, list):
        raise ConfigError(f"{file}: 'special_tokens' must be a list, not {entries!r}")
    special = _special_tokens(file, entries, config.get("default_num_special_tokens"))
    num_words = None
    if config.get("default_vocab_size") is not None:
        num_words = _number(file, config, "default_vocab_size") - len(special)
    words = _words(file, values.get("vocab"), num_words)
    told = {name: text for name, text in _SPECIAL.items() if text in special}
    return {
        "tokenizer.json": _json(_tokenizer(file, config["pattern"], special, words)),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "clean_up_tokenization_spaces": False,
                **_chat_template(str(config.get("version")), special),
                **told,
            }
        ),
    }


def _chat_template(version: str, special: list[str]) -> dict[str, str]:
    """As Mistral's own library writes chats of a version: the folders have no template."""
    parts = _PARTS.get(version)
    if parts is None:
        return {}
    thought = _THOUGHT if parts.has_thoughts and "[/THINK]" in special else ""
    told = _TOLD_WITH_USER if parts.system is None else ""
    system = parts.system or ""
    return {
        "chat_template": _CHAT.replace("<system>", system)
        .replace("<tools_at>", parts.tools_at)
        .replace("<told>", told)
        .replace("<thought>", thought)
        .replace("<calls>", parts.calls)
        .replace("<result>", parts.result)
    }


def _special_tokens(file: Path, entries: list[Any], num_wanted: object) -> list[str]:
    """Special tokens by token id; those that the file leaves out have names of their own."""
    texts: dict[object, str] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("token_str"), str):
            raise ConfigError(f"{file}: a special token has no 'token_str': {entry!r}")
        texts[entry.get("rank")] = entry["token_str"]
    num_special = len(texts) if num_wanted is None else num_wanted
    if not isinstance(num_special, int) or not texts.keys() <= {*range(num_special)}:
        raise ConfigError(
            f"{file}: special tokens have ranks {[*texts]}, which are not all below {num_special!r}"
        )
    return [texts.get(rank, f"<SPECIAL_{rank}>") for rank in range(num_special)]


def _words(file: Path, entries: object, num_wanted: int | None) -> list[bytes]:
    """The words by rank. Files may have more of them than the model."""
    if not isinstance(entries, list) or (num_wanted is not None and len(entries) < num_wanted):
        raise ConfigError(f"{file}: 'vocab' has not the {num_wanted} words that 'config' tells of")
    words = []
    for rank, entry in enumerate(entries[:num_wanted]):
        try:
            word = base64.b64decode(entry["token_bytes"], validate=True)
            is_next = entry.get("rank", rank) == rank
        except (AttributeError, KeyError, TypeError, binascii.Error) as exc:
            raise ConfigError(f"{file}: word {rank} has no 'token_bytes': {entry!r}") from exc
        if not word or not is_next:
            raise ConfigError(f"{file}: word {rank} is empty or out of order: {entry!r}")
        words.append(word)
    return words


def _tokenizer(file: Path, pattern: str, special: list[str], words: list[bytes]) -> dict[str, Any]:
    """Words come behind the special tokens."""
    first = _BOS if _BOS in special else None
    return ranked_bpe(
        file,
        PreTokenizer(pattern, takes_whole_words=True),
        words,
        first_id=len(special),
        added=[added_token(token_id, text) for token_id, text in enumerate(special)],
        processor=around_texts({_BOS: special.index(_BOS)} if first else {}, first, None),
    )


def _number(file: Path, config: dict[str, Any], name: str) -> int:
    value = config[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{file}: {name!r} must be a positive integer, not {value!r}")
    return value


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
