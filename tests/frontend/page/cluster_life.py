"""Two minutes in the life of a small cluster, for its picture: load, a drain, a kill."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from playwright.sync_api import Page, expect

MINUTE_MS = 60_000
_SYSTEM = "You are a friendly teller of tiny stories for children. " * 6
_QUESTIONS = ("Tell me a story about a dragon.", "Name three colours.", "What is 3 plus 4?")


@contextmanager
def load(url: str, num_clients: int = 6) -> Iterator[None]:
    """Clients that ask, think for a while, and ask again."""
    over = threading.Event()

    def ask(seed: int) -> None:
        choose = random.Random(seed)
        with httpx.Client(base_url=url, timeout=60) as http:
            for number in itertools.count():
                if over.wait(choose.uniform(0.2, 5)):
                    return
                question = choose.choice(_QUESTIONS)
                messages = [
                    {"role": "system", "content": _SYSTEM},
                    {"role": "user", "content": question},
                ]
                body = {"model": "jetflock-demo", "messages": messages, "seed": number}
                http.post("/v1/chat/completions", json=body | {"max_tokens": 150})

    clients = [threading.Thread(target=ask, args=(seed,)) for seed in range(num_clients)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


def live(page: Page, admin_key: str) -> None:
    """The Cluster tab afterwards, with a stream that has survived."""
    page.set_default_timeout(MINUTE_MS)
    page.evaluate("key => sessionStorage.setItem('jetflock:/:admin-key', key)", admin_key)
    page.click("#tab-cluster")
    ready = page.locator('.cl-row[data-state="ready"]')
    expect(ready).to_have_count(2, timeout=MINUTE_MS)
    with load(page.url.partition("#")[0]):
        page.wait_for_timeout(0.75 * MINUTE_MS)
        for _ in "12":  # the second click is the answer to "Drain?"
            ready.first.locator(".cl-drain").click()
        page.wait_for_timeout(0.75 * MINUTE_MS)
        page.click("#demo-start")
        page.click("#demo-kill")
        verdict = page.locator(".cl-demo")
        expect(verdict).to_have_attribute("data-verdict", "same", timeout=2 * MINUTE_MS)
        page.wait_for_timeout(0.4 * MINUTE_MS)
    page.mouse.move(0, 0)
