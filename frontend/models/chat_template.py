"""Chat templates: messages to prompt text, by the model's own Jinja source, in a sandbox.

The environment offers what the templates of published models expect (the globals and filters of
transformers' `apply_chat_template`; a test compares the two), without importing transformers.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from frontend.models.message_parts import with_parts
from frontend.parsers.reasoning import REASONING_PARSERS
from frontend.parsers.tool_parsers import TOOL_PARSERS
from shared.errors import ConfigError, InvalidRequest

_PAIR_ROLES = tuple(re.compile(f"""["']{role}["']""") for role in ("query", "document"))
_EFFORT_NAMES = ("reasoning_effort", "enable_thinking")  # how templates hear how much to think
_CUT_HERE = "\ue000cut-here\ue001"  # private use: marks the end of a message to be continued


class ChatTemplate:
    """A compiled template and the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        """Raises ConfigError when the source does not compile."""
        try:
            self._template = _environment().from_string(source)
        except TemplateError as exc:
            raise ConfigError(f"the model's chat template does not compile: {exc}") from exc
        # Each rendering copies them, key by key where they are a ChainMap, as jinja makes them.
        self._template.globals = dict(self._template.globals)
        self._special_tokens = special_tokens
        self.knows_developer_role = "developer" in source
        self.knows_documents = "documents" in source
        self.knows_pairs = all(role.search(source) for role in _PAIR_ROLES)  # of a reranker
        self.knows_tools = "tools" in source
        self.effort_names = frozenset(name for name in _EFFORT_NAMES if name in source)
        self.source = source
        self.tool_parser = TOOL_PARSERS.fitting(source)  # None: calls in a form that is not known
        self.reasoning_parser = REASONING_PARSERS.fitting(source)  # None: it does not think aloud

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: dict[str, Any] | None = None,
        has_parts: bool = False,
    ) -> str:
        """The prompt text; to a model that sees or hears, contents are lists of parts.

        Raises InvalidRequest when the template refuses the messages.
        """
        if continue_final_message:
            messages = [*messages[:-1], _marked(messages[-1])]
        if has_parts:
            messages = [with_parts(message) for message in messages]
        variables = {
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **(kwargs or {}),
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(variables)
        except (
            TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as exc:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {exc}", param="messages"
            ) from exc
        if continue_final_message:
            return _cut(text)
        return text


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str) or not content:
        raise InvalidRequest(
            "'continue_final_message' needs a final message with content", param="messages"
        )
    return {**message, "content": content + _CUT_HERE}


def _cut(text: str) -> str:
    """Text up to the end of the message to be continued; as far as the template kept it."""
    end = text.rfind(_CUT_HERE)
    if end < 0:
        raise InvalidRequest(
            "'continue_final_message' does not work with this model's chat template",
            param="continue_final_message",
        )
    return text[:end]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _GuardedNamespace
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: Jinja's own filter escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


class _GuardedNamespace(Namespace):
    """`namespace()` that keeps templates off Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template may not set the attribute {name!r}")


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model said, for training; here it only wraps its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
