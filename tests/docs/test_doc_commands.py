"""Every command of README.md and docs/ does what it says, against one running service."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.deploy.local_stack import REAL_ROLES, REPOSITORY, LocalStack
from tests.docs.command_line import CommandLine, command_lines
from tests.docs.doc_shell import DocShell
from tests.docs.markdown_page import CodeBlock, MarkdownPage
from tests.nats_server import free_port

# Why a block need not run, as its page says in a comment before it. Nothing else counts.
EXCUSES = (
    "needs a cluster",
    "needs a GPU",
    "needs another model",  # than the demo model, or files of the reader's
    "needs another tool",  # of somebody else: nats, helm, kubectl, lm_eval
    "needs the internet",
    "runs until stopped",
    "takes minutes",
)
# What a newcomer types first; the others are for `make test-all`.
FIRST_PAGES = ("README.md", "quick-start.md", "http-api.md", "nats-api.md")
REMEDY = f"""
Each ```sh, ```console and ```python block of README.md and docs/*.md is run here, whole, by bash
-eu or python, against one `jetflock serve --admin-port 8001 --nats-port 4222 --keep-requests asked
--bills-ttl-s 86400` with the demo model (ports are replaced). Correct the block; or write above it,
as a line of its own,
    <!-- not run: REASON -->
with one of: {", ".join(EXCUSES)}. Then only its `jetflock` and `make` commands and their flags are
checked to exist. What is no command (an answer, a configuration) is ```text, ```json or ```yaml.
To try one page: python -m pytest tests/docs -s --doc-page docs/NAME.md
"""


def pages() -> list[Path]:
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def blocks_of(paths: Sequence[Path]) -> list[CodeBlock]:
    return [block for path in paths for block in MarkdownPage.read(path).blocks]


def where(block: CodeBlock) -> str:
    return f"{block.page.relative_to(REPOSITORY)}:{block.line}"


def test_excuses_come_from_a_short_list() -> None:
    unknown = [
        f"{where(block)}: {block.excuse}"
        for block in blocks_of(pages())
        if block.excuse is not None and block.excuse not in EXCUSES
    ]
    assert not unknown, "\n".join([*unknown, REMEDY])


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocShell]:
    folder, admin_port = tmp_path_factory.mktemp("docs"), free_port()
    ports = ("--admin-port", str(admin_port), "--nats-port", str(free_port()))
    flags = (*ports, "--keep-requests", "asked", "--bills-ttl-s", "86400")
    stack = LocalStack(folder / "stack", *flags, program=REAL_ROLES)
    try:
        stack.start().wait_ready()
        with DocShell(stack, folder / "shell", admin_port) as shell:
            yield shell
        assert stack.process.poll() is None, "the service has ended"
    finally:
        stack.kill()


@pytest.mark.integration
@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "are_first", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["first", "others"]
)
def test_commands_run(shell: DocShell, doc_pages: list[Path], are_first: bool) -> None:
    failures: list[str] = []
    chosen = [page for page in doc_pages or pages() if (page.name in FIRST_PAGES) is are_first]
    for block in blocks_of(chosen):
        if block.excuse is None:
            outcome = shell.run(block)
            print(f"{outcome.elapsed_s:6.2f} s  {outcome.status}  {where(block)}")
            if outcome.status != 0:
                ended = f"status {outcome.status}: {outcome.tail}"
                failures.append(f"{where(block)}: {ended}\n")
        elif block.language != "python":
            print(f"not run: {block.excuse:22} {where(block)}")
            failures += [f"{where(block)}: {fault}\n" for fault in faults(shell, block)]
    assert not failures, "\n".join([*failures, REMEDY])


def faults(shell: DocShell, block: CodeBlock) -> list[str]:
    """What commands of a block that is not run name, and does not exist."""
    return [
        fault
        for command in command_lines(block.script)
        for fault in (
            make_faults(command) if command.program == "make" else jetflock_faults(shell, command)
        )
    ]


def make_faults(command: CommandLine) -> list[str]:
    targets = re.findall(r"^([\w -]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    known = {target for line in targets for target in line.split()}
    return [f"make {target}: no such target" for target in command.words if target not in known]


def jetflock_faults(shell: DocShell, command: CommandLine) -> list[str]:
    words = command.words
    shown = shell.help_of(words)
    if shown.status != 0 and len(words) > 1:  # the second word was a value
        words = words[:1]
        shown = shell.help_of(words)
    name = " ".join(["jetflock", *words])
    if shown.status != 0:
        return [f"{name}: {shown.tail}"]
    told = re.sub(r"--\[no-\]([\w-]+)", r"--\1 --no-\1", shown.output)
    known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", told))
    return [f"{name} has no flag {flag}" for flag in command.flags if flag not in known]


def test_commands_are_told_from_their_values() -> None:
    script = (
        'A=b jetflock admin drain W --timeout-s 60 | cat && make test ARGS="-x"  # jetflock x\n'
        "jetflock service install --system -- M --port 1\n"
    )
    assert list(command_lines(script)) == [
        CommandLine("jetflock", ("admin", "drain"), ("--timeout-s",)),
        CommandLine("make", ("test",), ()),
        CommandLine("jetflock", ("serve",), ("--port",)),
        CommandLine("jetflock", ("service", "install"), ("--system",)),
    ]
