"""An operator's own parser, in a file that `--tool-parser` or `--reasoning-parser` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from frontend.config import FrontendConfig
from frontend.models.chat_template import ChatTemplate
from frontend.parsers.reasoning import REASONING_PARSERS
from frontend.parsers.tool_parsers import TOOL_PARSERS
from frontend.surfaces.tools.answer_styles import AnswerStyles
from shared.errors import ConfigError
from shared.protocol.reply import AnswerFormat
from tests.docs.markdown_page import MarkdownPage
from tests.frontend.conftest import Stack
from tests.frontend.surfaces.test_answer_parser import Answer, read

DOCUMENT = Path(__file__).parents[3] / "docs" / "http-api.md"
TOOL = """
from frontend.parsers.calls.marks import Marks
from frontend.parsers.tools.hermes import Hermes
"""
THOUGHT = """
from frontend.parsers.reasoning import Think as _Think


class Aside(_Think):
    name = "aside"
    begins = ("<aside>",)
    ends = ("</aside>",)
"""


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds is gone behind it."""
    for registry in (TOOL_PARSERS, REASONING_PARSERS):
        monkeypatch.setattr(registry, "_parsers", registry._parsers)
        monkeypatch.setattr(registry, "_by_name", dict(registry._by_name))


def file_of(folder: Path, text: str) -> str:
    path = folder / "own parser.py"
    path.write_text(text)
    return str(path)


def test_the_documents_example_reads_calls(tmp_path: Path) -> None:
    [block] = [each for each in MarkdownPage.read(DOCUMENT).blocks if "(Hermes)" in each.text]
    AnswerStyles(tool_parser=file_of(tmp_path, block.text))
    answer = AnswerFormat(tools="shout")
    text = 'So: <<CALL>>{"name": "add", "arguments": {"a": 1}}<<END>>'
    assert read(answer, text) == Answer("", "So:", [("add", '{"a": 1}')])
    assert read(answer, *text) == read(answer, text)
    template = ChatTemplate("{{ tools }} <<CALL>>", {})
    assert template.tool_parser is TOOL_PARSERS.stored("shout")
    other = ChatTemplate("{{ tools }} <tool_call>", {})
    assert other.tool_parser is TOOL_PARSERS.stored("hermes")


def test_reasoning_has_plug_ins_too(tmp_path: Path) -> None:
    path = file_of(tmp_path, THOUGHT)
    AnswerStyles(reasoning_parser=path)
    AnswerStyles(reasoning_parser=path)  # as a second service in one process
    assert read(AnswerFormat(reasoning="aside"), "<aside>Hm.</aside>Yes.") == Answer("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ny = nothing", r"NameError: name 'nothing' is not defined \(line 2\)"),
        ("def", r"SyntaxError: .*"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = 1", "it defines none"),
        (f"{TOOL}class A(Hermes): name = 'a'\nclass B(Hermes): name = 'b'", "it defines A, B"),
        (f"{TOOL}class A(Hermes): name = 'mistral'", "named 'mistral', as a tool parser that is"),
        (f"{TOOL}class A(Hermes): name = 5", "A.name is 5"),
        (f"{TOOL}class A(Hermes):\n    name = 'a'\n    marks = '<a>'", "A.marks is '<a>'"),
        (f"{TOOL}class A(Hermes):\n    name = 'a'\n    marks = Marks('')", "marks.begin is empty"),
        (f"{TOOL}class A(Hermes):\n    name = 'a'\n    has_channels = True", "has_channels"),
        (
            "from frontend.parsers.calls.tool_parser import ToolParser\n"
            "class A(ToolParser): name = 'a'",
            "A lacks behind_mark, calls_rule, fits",
        ),
        (
            f"{TOOL}class A(Hermes):\n    name = 'a'\n    def __init__(self, x): pass",
            "TypeError",
        ),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, text: str, words: str) -> None:
    path = file_of(tmp_path, text)
    with pytest.raises(ConfigError, match=f"own parser.py.*{words}|{words}"):
        AnswerStyles(tool_parser=path)
    assert "a" not in TOOL_PARSERS.names


def test_marks_of_reasoning_are_texts(tmp_path: Path) -> None:
    path = file_of(tmp_path, THOUGHT.replace('("</aside>",)', '""'))
    with pytest.raises(ConfigError, match=r"Aside\.ends is '', must be a tuple"):
        AnswerStyles(reasoning_parser=path)


BOOM = f"""{TOOL}
class Boom(Hermes):
    name = "boom"
    marks = Marks("H")

    def behind_mark(self, text, at, names):
        raise ValueError("boom")
"""


@pytest.mark.integration
async def test_one_that_fails_ends_its_request_alone(tmp_path: Path, stack: Stack) -> None:
    running = await stack.start_frontend(tool_parser=file_of(tmp_path, BOOM))
    plain = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    body = {**plain, "tools": [{"type": "function", "function": {"name": "now"}}]}
    async with running.client() as client:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 500
        assert "its parser failed with ValueError" in answer.json()["error"]["message"]
        streamed = (await client.post("/v1/chat/completions", json={**body, "stream": True})).text
        assert "its parser failed with ValueError" in streamed
        assert "[DONE]" not in streamed
        told = (await client.post("/v1/chat/completions", json=plain)).json()
        assert told["choices"][0]["message"]["content"] == "Hello, world!"


@pytest.mark.parametrize(
    ("tools", "reasoning", "words"),
    [
        ("hermess", "auto", "no tool parser 'hermess'; there are .*, or a file of your own"),
        ("none", "auto", "no tool parser 'none'"),
        ("auto", "thinks", "no reasoning parser 'thinks'"),
        ("/nowhere/own.py", "auto", "--tool-parser /nowhere/own.py: there is no such file"),
    ],
)
def test_choices_are_checked_before_anything_starts(tools: str, reasoning: str, words: str) -> None:
    FrontendConfig(tool_parser="hermes", reasoning_parser="none").check_parsers()
    with pytest.raises(ConfigError, match=words):
        FrontendConfig(tool_parser=tools, reasoning_parser=reasoning).check_parsers()
