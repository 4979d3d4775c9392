"""`make screenshots`: the pictures of the page in docs/images, from a real service."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.deploy.local_stack import REAL_ROLES, REPOSITORY, LocalStack
from tests.frontend.page.cluster_life import live
from tests.frontend.page.conftest import PHONE, find_chromium
from tests.nats_server import free_port

IMAGES = REPOSITORY / "docs" / "images"
MAX_BYTES = 200_000
WIDE = {"width": 1280, "height": 800}
SMALL = {"width": 320, "height": 640}
TALL = {"width": 1280, "height": 1040}
ADMIN_KEY = "the-key-of-these-pictures"


def chat(page: Page) -> None:
    for text in ("Name three colours.", "Tell me a story about a dragon."):
        ask(page, text)


def completion(page: Page) -> None:
    page.click("#tab-completions")
    page.click("#completion-run")
    expect(page.locator("#completion-foot")).to_contain_text("out", timeout=60_000)
    page.locator("#completion-tokens .surprise-4, #completion-tokens .surprise-3").first.hover()


def ask(page: Page, text: str) -> None:
    page.fill("#composer-input", text)
    page.click("#send-button")
    last = page.locator(".message:last-child")
    expect(last.locator(".is-worker")).to_be_visible(timeout=60_000)
    expect(last).not_to_have_class("message from-assistant is-running")
    page.mouse.move(0, 0)


def cluster(page: Page) -> None:
    live(page, ADMIN_KEY)


def _held(viewport: dict[str, int], scheme: str) -> dict[str, Any]:
    """In a hand."""
    return {
        "viewport": viewport,
        "color_scheme": scheme,
        "is_mobile": True,
        "device_scale_factor": 1.5,
    }


# What the browser has kept from an earlier visit, so that the pictures are the same every time.
KEPT = {
    "settings": {"seed": "7"},
    "completion": {"prompt": "Once upon a time, a dragon", "settings": {"seed": "4"}},
}
# Name of the picture: what is done before it, and how the browser is.
SHOTS: dict[str, tuple[Callable[[Page], None], dict[str, Any]]] = {
    "chat": (chat, {"viewport": WIDE, "color_scheme": "light"}),
    "chat-dark": (chat, {"viewport": WIDE, "color_scheme": "dark"}),
    "completions": (completion, {"viewport": WIDE, "color_scheme": "light"}),
    "cluster": (cluster, {"viewport": TALL, "color_scheme": "light"}),
    "cluster-dark": (cluster, {"viewport": TALL, "color_scheme": "dark"}),
    "phone": (chat, _held(PHONE, "light")),
    "phone-dark": (chat, _held(PHONE, "dark")),
    "small": (chat, _held(SMALL, "light")),
    "small-dark": (chat, _held(SMALL, "dark")),
}


def shoot(browser: Browser, url: str, name: str) -> Path:
    """Makes one picture."""
    act, options = SHOTS[name]
    context = browser.new_context(reduced_motion="reduce", **options)
    for name_of, kept in KEPT.items():
        context.add_init_script(f"localStorage['jetflock:/:{name_of}'] = {json.dumps(kept)!r}")
    page = context.new_page()
    page.goto(url)
    expect(page.locator("#chat-model")).not_to_have_value("")
    act(page)
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path)
    context.close()
    return path


def _flags(folder: Path) -> list[str]:
    """Two workers, which the page may kill."""
    key_file = folder / "admin.key"
    key_file.write_text(ADMIN_KEY)
    admin = ["--admin-port", str(free_port()), "--admin-key-file", str(key_file)]
    return ["--workers", "2", *admin]


def main(names: list[str]) -> None:
    """Those named, or all."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit("no Chromium on this machine: Debian's package is chromium-headless-shell")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        stack = LocalStack(Path(folder), *_flags(Path(folder)), program=REAL_ROLES)
        try:
            url = f"http://127.0.0.1:{stack.start().wait_ready().port}/"
            for name in names or SHOTS:
                path = shoot(browser, url, name)
                num_bytes = path.stat().st_size
                print(f"{path.relative_to(REPOSITORY)}  {num_bytes:,} bytes")
                assert num_bytes < MAX_BYTES, f"{name} is larger than {MAX_BYTES:,} bytes"
        finally:
            stack.kill()
            browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
