"""Tool calls and reasoning in the page, before a frontend whose model says what a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect

from shared.liveness.heartbeat import Heartbeat
from shared.protocol.role_cards import WorkerCard, WorkerState
from tests.frontend.conftest import RunningFrontend, Stack
from tests.frontend.page.conftest import chromium
from tests.frontend.surfaces.test_tools import STYLES, TEXT, pieces

pytestmark = [pytest.mark.integration, pytest.mark.e2e]


TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "now")]


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    path = chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield await browser.new_page()
        await browser.close()


@pytest.fixture(autouse=True)
async def worker(stack: Stack) -> AsyncIterator[None]:
    """The page offers what somebody serves."""
    bucket = stack.cluster.bucket(stack.cluster.subjects.workers_bucket)
    card = WorkerCard("w", stack.card.pool, "tiny", stack.card.revision, WorkerState.READY)
    beating = asyncio.create_task(Heartbeat(bucket, f"{card.pool}.w", lambda: card).run())
    yield
    beating.cancel()
    await asyncio.wait([beating])


async def ask(page: Page, running: RunningFrontend) -> None:
    await page.goto(running.url)
    await expect(page.locator("#chat-model")).to_have_value("tiny")
    await page.fill("#chat-tools", json.dumps(TOOLS))
    await page.fill("#composer-input", "Weather?")
    await page.press("#composer-input", "Enter")


async def test_a_model_thinks_calls_a_tool_and_hears_what_it_said(stack: Stack, page: Page) -> None:
    running = await stack.start_frontend(**STYLES)
    half, gate = TEXT.index("Osló\\n"), asyncio.Event()
    stack.say(TEXT[:half], *pieces(TEXT[half:]), gate=gate)
    await ask(page, running)
    calls = page.locator(".tool-call")
    await expect(calls.locator("b")).to_have_text(["get_weather"])
    gate.set()
    await expect(calls.locator("b")).to_have_text(["get_weather", "now"])
    await expect(calls.first.locator("pre")).to_have_text('{\n  "city": "Osló\\n🙂"\n}')
    await expect(page.locator(".message:last-child > .markdown")).to_have_text("I look.")
    reasoning = page.locator(".reasoning")
    await expect(reasoning).not_to_have_attribute("open", "")
    await reasoning.locator("summary").click()
    await expect(reasoning.locator(".markdown")).to_have_text("Osló 🙂?")
    await expect(page.locator(".numbers")).to_contain_text("tool_calls")

    stack.say("<think></think>It rains.")
    for number, text in enumerate(("rain", "12:00")):
        await page.locator(".tool-results textarea").nth(number).fill(text)
    async with page.expect_request("**/v1/chat/completions") as sent:
        await page.get_by_text("Send the results").click()
    body: Any = (await sent.value).post_data_json
    messages = body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert [(m["tool_call_id"], m["content"]) for m in messages[2:]] == [
        (ids[0], "rain"),
        (ids[1], "12:00"),
    ]
    await expect(page.locator(".message:last-child > .markdown")).to_have_text("It rains.")


async def test_an_answer_that_is_stopped_before_it_was_accepted_ends_all_the_same(
    stack: Stack, page: Page
) -> None:
    running = await stack.start_frontend(**STYLES)
    stack.say("Hello", never_finish=True)
    held = asyncio.Event()

    async def hold(route: object) -> None:
        await held.wait()
        await route.continue_()  # type: ignore[attr-defined]

    await page.route("**/v1/chat/completions", hold)
    await ask(page, running)
    await page.click("#stop-button")
    async with page.expect_response("**/abort_request") as answer:
        held.set()
    assert (await (await answer.value).json())["num_aborted"] == 1
    await expect(page.locator(".notice")).to_have_text("Stopped.")
