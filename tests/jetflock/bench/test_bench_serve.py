"""The command from flags to figures, files and status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jetflock.bench.__main__ import PROGRAM
from tests.jetflock.bench.scripted_openai import (
    DONE,
    Script,
    ScriptedOpenai,
    Step,
    event,
    scripted_openai,
    stream,
    usage_event,
    whole,
)
from tests.tls_files import make_tls_files

ANSWER = stream(event("a"), 0.01, event("b"), event("c", "length"), usage_event(12, 3, 6), DONE)


@contextlib.contextmanager
def running(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedOpenai]:
    """In a thread: the command has a loop of its own."""
    started = threading.Event()
    found: list[ScriptedOpenai] = []
    over = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with scripted_openai(script, tls) as server:
            found.append(server)
            loops.append(asyncio.get_running_loop())
            started.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield found[0]
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join()


def bench(server: ScriptedOpenai, *flags: str) -> int:
    """Its status."""
    try:
        PROGRAM.run(["serve", "--url", server.url, *flags])
    except SystemExit as exc:
        return int(exc.code or 0)
    return 0


def of_chats(path: str, body: Any) -> Sequence[Step] | None:
    return ANSWER if path == "/v1/chat/completions" else None


def test_a_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "out.json", tmp_path / "out.html"
    flags: tuple[str, ...] = (
        "--num-requests",
        "6",
        "--concurrency",
        "2",
        "--input-len",
        "20",
        "--warmup",
        "2",
    )
    flags += ("--output-len", "3", "--goodput", "ttft:60000", "itl:0.001", "--json-requests")
    with running(of_chats) as server:
        assert bench(server, *flags, "--json", str(file), "--plot", str(page)) == 0
    told = capsys.readouterr()
    assert "model scripted: 20 in, 3 out, words" in told.err
    for words in (
        "requests answered 6",
        "good requests 0.0% 0.00 /s",
        "time to first token (TTFT)",
    ):
        assert words in " ".join(told.out.split())
    result = json.loads(file.read_text())
    [stage], [requests] = result["stages"], result["requests"]
    assert (stage["num_ok"], stage["output_tokens"], stage["cached_tokens"]) == (6, 18, 36)
    assert stage["itl_ms"]["num"] == 12
    assert [each["output_tokens"] for each in requests] == [3] * 6
    assert "<svg" in page.read_text()
    chats = [body for path, body in server.requests if path == "/v1/chat/completions"]
    assert len(chats) == 8
    assert {len(chat["messages"][0]["content"].split()) for chat in chats} == {20}


def test_a_sweep_is_a_line_each_and_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plot = tmp_path / "out.json", tmp_path / "out.svg"
    flags = ("--sweep", "1,2", "--num-requests", "3", "--output-len", "3", "--input-len", "20")
    with running(of_chats) as server:
        assert bench(server, *flags, "--json", str(file), "--plot", str(plot)) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("  ")[0] for line in lines[:3]] == ["load", "1 at a time", "2 at a time"]
        assert bench(server, *flags, "--seed", "1", "--compare", str(file)) == 0
    compared = capsys.readouterr().out
    assert compared.count("TTFT p50 ms") == 2
    assert "note: the runs differ in seed 0 and 1" in compared
    root = ET.parse(plot).getroot()
    panels = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"throughput", "whole request", "p50", "p99"} <= set(panels)


def test_an_open_loop(capsys: pytest.CaptureFixture[str]) -> None:
    with running(of_chats) as server:
        flags = ("--request-rate", "100", "--num-requests", "10", "--input-len", "20")
        assert bench(server, *flags) == 0
    assert "sent after due" in capsys.readouterr().out


@pytest.mark.e2e
def test_https(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tls_files(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    flags = ("--num-requests", "4", "--concurrency", "2", "--input-len", "20")
    with running(of_chats, tls) as server:
        assert bench(server, *flags) == 2
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
        assert bench(server, *flags, "--insecure") == 0


def failing(every: int) -> Script:
    num = 0

    def script(path: str, body: Any) -> Sequence[Step] | None:
        nonlocal num
        if path != "/v1/chat/completions":
            return None
        num += 1
        return whole(500, {"error": {"message": "broken"}}) if num % every == 0 else ANSWER

    return script


def test_failed_requests_are_told_and_are_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--num-requests", "8", "--concurrency", "1", "--input-len", "20", "--warmup", "0")
    with running(failing(4)) as server:
        assert bench(server, *flags) == 1
        told = capsys.readouterr()
        assert "requests failed" in told.out
        assert "note: the first http 500: broken" in told.out
        assert "2 of 8 requests failed" in told.err
        assert bench(server, *flags, "--max-error-rate", "0.3") == 0


def test_a_server_that_refuses_the_first_request_is_told_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running(failing(1)) as server:
        assert bench(server, "--input-len", "20") == 2
    assert "the first request failed (http 500: broken)" in capsys.readouterr().err


def test_a_server_without_ignore_eos_is_asked_without(capsys: pytest.CaptureFixture[str]) -> None:
    def script(path: str, body: Any) -> Sequence[Step] | None:
        if path == "/v1/chat/completions" and "ignore_eos" in body:
            return whole(400, {"error": {"message": "unknown field ignore_eos"}})
        return of_chats(path, body)

    with running(script) as server:
        assert bench(server, "--num-requests", "3", "--input-len", "20") == 0
    assert "does not know ignore_eos" in capsys.readouterr().err


def test_prompts_are_counted_by_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    def script(path: str, body: Any) -> Sequence[Step] | None:
        if path == "/tokenize":
            return whole(200, {"count": 5 + len(body["messages"][0]["content"].split())})
        return of_chats(path, body)

    with running(script) as server:
        assert bench(server, "--num-requests", "3", "--input-len", "30") == 0
    assert "by the server's /tokenize, chat template included" in capsys.readouterr().err
    chats = [body for path, body in server.requests if path == "/v1/chat/completions"]
    assert {len(chat["messages"][0]["content"].split()) for chat in chats} == {25}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--concurrency", "0"), "concurrency is 0"),
        (("--request-rate", "0"), "request_rate is 0"),
        (("--range-ratio", "1"), "range_ratio is 1"),
        (("--plot", "a.png"), "plot is a.png"),
        (("--extra-body", "[]"), "extra_body is '[]'"),
        (("--header", "nonsense"), "header is 'nonsense'"),
        (("--sweep", "a"), "sweep is 'a'"),
        (("--goodput", "fast"), "goodput has 'fast'"),
        (("--compare", "absent.json"), "cannot read absent.json"),
        (("--url", "http://127.0.0.1:1"), "127.0.0.1:1 does not answer /v1/models"),
    ],
)
def test_flags_that_cannot_be_used(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        PROGRAM.run(["serve", *flags])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
