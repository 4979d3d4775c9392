"""A browser of each module, and a service for it to look at."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pytest
from playwright.async_api import expect as expect_in_loop
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.deploy.local_stack import REAL_ROLES, LocalStack

# The first one has no windows: a page costs a quarter of the CPU time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
WAIT_MS = 60_000  # for what a busy machine does late
KEY = "the-key-of-these-tests"
PHONE = {"width": 390, "height": 844}

expect.set_options(timeout=WAIT_MS)
expect_in_loop.set_options(timeout=WAIT_MS)


def find_chromium() -> str | None:
    """The path of whatever browser of the family there is."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def chromium() -> str:
    """Skips where there is none, except in CI, which installs it."""
    found = find_chromium()
    if found is None:
        reason = "no Chromium on this machine: Debian's package is chromium-headless-shell"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        # A container's root may not have a sandbox.
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """`jetflock serve` with the demo model, and a key."""
    chromium()
    folder = tmp_path_factory.mktemp("service")
    (folder / "keys").write_text(KEY)
    stack = LocalStack(folder, "--api-key-file", str(folder / "keys"), program=REAL_ROLES)
    try:
        yield stack.start().wait_ready()
    finally:
        stack.kill()


class Visit:
    """A visitor's browser profile, and what the page complained of."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.complaints: list[str] = []

    @cached_property
    def page(self) -> Page:
        return self.open()

    def with_key(self) -> Page:
        """The page as one sees it who has given the key before."""
        name = json.dumps("jetflock:/:key")
        self.context.add_init_script(f"sessionStorage.setItem({name}, {json.dumps(KEY)})")
        expect(self.page.locator("#chat-model")).not_to_have_value("")
        return self.page

    def open(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._on_console)
        page.goto(self.url)
        return page

    def _on_console(self, message: object) -> None:
        text = getattr(message, "text", "")
        # What a test provokes: a refused key, a connection that was cut.
        if getattr(message, "type", "") == "error" and "Failed to load resource" not in text:
            self.complaints.append(text)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens a URL as somebody new; no script may fail, and nothing may break the page's policy."""
    visits: list[Visit] = []

    def open_as_somebody_new(url: str, **options: object) -> Visit:
        # What pulses while an answer comes would be painted 60 times a second, without a GPU.
        usual: Any = {"accept_downloads": True, "reduced_motion": "reduce"}
        visits.append(Visit(browser.new_context(**(usual | options)), url))
        return visits[-1]

    yield open_as_somebody_new
    for each in visits:
        each.context.close()
    assert [text for each in visits for text in each.complaints] == []


@pytest.fixture
def url(service: LocalStack) -> str:
    return f"http://127.0.0.1:{service.port}/"
