"""`jetflock chat` as a person and as a program use it, against real roles."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jetflock.chat.answer_view import finished_len
from tests.e2e.role_stack import RoleStack
from tests.forked_program import run_program
from tests.jetflock.terminal_program import TerminalProgram
from tests.nats_server import free_port

CHAT = (sys.executable, "-m", "jetflock", "chat")


async def chat(*argv: str, url: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "JETFLOCK_URL": url}
    return await asyncio.to_thread(run_program, "jetflock", "chat", *argv, env=env)


async def piped_chat(*argv: str, url: str, stdin: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*CHAT, *argv],
        input=stdin,
        env={**os.environ, "JETFLOCK_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.integration
@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_a_pipe_gets_the_answer_alone_and_the_status_tells(shared_stack: RoleStack) -> None:
    flags = ("--max-tokens", "20", "--seed", "1")
    piped = await piped_chat(*flags, url=shared_stack.url(), stdin="hi\n")
    assert (piped.returncode, piped.stderr) == (0, "")
    assert piped.stdout.strip()
    asked = await chat("hi", *flags, "--stats", url=shared_stack.url())
    assert asked.stdout == piped.stdout
    assert asked.stderr.startswith("20 tokens, first after ")
    assert asked.stderr.endswith(", length\n")

    over_nats = await chat("hi", *flags, "--stats", url=shared_stack.nats.url)
    assert over_nats.stdout == piped.stdout
    assert over_nats.stderr.startswith("20 tokens, first after ")

    refused = await chat("hi", "--temperature", "7", url=shared_stack.url())
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "'temperature' is 7.0" in refused.stderr
    empty = await chat(url=shared_stack.url())
    assert empty.returncode == 2
    for scheme in ("http", "nats"):
        nobody = await chat("hi", url=f"{scheme}://127.0.0.1:{free_port()}")
        assert nobody.returncode == 1
        assert "is it running" in nobody.stderr
    misspelt = await chat("hi", "--temprature", "1", url=shared_stack.url())
    assert misspelt.returncode == 2
    assert "--temperature" in misspelt.stderr


@pytest.mark.integration
@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_an_answer_goes_on_at_another_frontend_when_the_first_is_killed(
    shared_stack: RoleStack,
) -> None:
    first_frontend = shared_stack.start_frontend()
    await shared_stack.wait_ready(1)
    flags = ("hi", "--max-tokens", "150", "--seed", "1", "--stats")
    undisturbed = await chat(*flags, url=shared_stack.url())
    both = f"{shared_stack.url(first_frontend)},{shared_stack.url()}"
    process = await asyncio.create_subprocess_exec(
        *CHAT,
        *flags,
        env={**os.environ, "JETFLOCK_URL": both},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    first = await process.stdout.read(20)
    first_frontend.kill()
    rest, numbers = await process.communicate()
    assert (first + rest).decode() == undisturbed.stdout
    assert process.returncode == 0
    assert numbers.startswith(b"150 tokens")
    assert b"resumed" in numbers


@pytest.mark.integration
@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_a_conversation_in_a_terminal(shared_stack: RoleStack, tmp_path: Path) -> None:
    env = {"JETFLOCK_URL": shared_stack.url(), "XDG_STATE_HOME": str(tmp_path / "state")}
    saved = tmp_path / "saved.json"
    await asyncio.to_thread(_converse, env, saved)
    await shared_stack.until_queued(0, 19)  # soon: the stopped answer would take 20 s
    body = json.loads(saved.read_text())
    assert [turn["role"] for turn in body["messages"]] == ["system", "user", "assistant"]
    assert body["messages"][1]["content"] == "hello there"
    assert (body["temperature"], body["max_tokens"]) == (0.5, 10)
    history = tmp_path / "state/jetflock/chat_history"
    assert "/edit" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def _converse(env: dict[str, str], saved: Path) -> None:
    with TerminalProgram(CHAT, env) as program:
        program.wait_for("> ")
        for line in ("/max_tokens 10", "/temperature 0.5", "/system Be brief."):
            program.type(line + "\n")
            program.wait_for("\n> ")
        program.type("hello\n")
        assert "10 tokens, first after" in program.wait_for(", length\n> ")
        program.type("/regenerate\n")
        program.wait_for(", length\n> ")
        program.type("/edit\n")
        program.wait_for("> hello")
        program.type(" there\n")
        program.wait_for(", length\n> ")
        program.type(f"/save {saved}\n")
        assert "2 turns in" in program.wait_for("\n> ")
        program.type("/temprature 1\n")
        program.wait_for("did you mean /temperature?")
        program.type("/max_tokens 2000\n")
        program.wait_for("max_tokens is 2000\n> ")
        program.type("go on\n")
        program.wait_for("go on\n")
        for _ in range(10):
            program.wait_for(" ")  # words of it: by then a Ctrl-C is its own
        program.type("\x03")
        assert "stopped" in program.wait_for("Ctrl-C again")
        program.type("/clear\n")
        program.wait_for("forgotten")
        program.type(f"/load {saved}\n")
        program.wait_for("2 turns, with demo")
        for _ in range(2):
            program.wait_for("\n> ")
            program.interrupt()
        assert program.wait_exit() == 130


def test_whole_paragraphs_are_finished_and_code_is_not_cut() -> None:
    assert finished_len("one\ntwo") == 0
    assert finished_len("one\n\ntwo") == 5
    assert finished_len("one\n\n```\na\n\nb\n") == 5
    assert finished_len("```\na\n\nb\n```\n\nc") == 14
