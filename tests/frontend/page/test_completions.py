"""The Completions tab in a real browser, before a real service with the demo model."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.frontend.page.conftest import WAIT_MS, Visit

pytestmark = [pytest.mark.integration, pytest.mark.e2e]

TOKENS = "#completion-tokens .token"


@pytest.fixture
def page(visit: Callable[..., Visit], url: str) -> Page:
    page = visit(url + "#completions").with_key()
    page.fill("#completion-max_tokens", "12")
    page.fill("#completion-temperature", "0")
    return page


def complete(page: Page) -> None:
    page.click("#completion-run")
    expect(page.locator("#completion-run")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator("#completion-foot")).to_contain_text("out")


def test_each_token_tells_its_alternatives_and_may_be_replaced(page: Page) -> None:
    page.fill("#completion-prompt", "Once upon a time")
    page.select_option("#completion-top", "3")
    complete(page)
    expect(page.locator(TOKENS)).to_have_count(12)
    page.mouse.move(0, 0)
    page.locator(TOKENS).nth(1).hover()
    card = page.locator("#token-card")
    expect(card.locator("li")).to_have_count(3)
    shares = [float(text.strip("< %")) for text in card.locator("li span").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0
    assert sum(shares) < 100.2
    second = card.locator("li:nth-child(2) code").inner_text().replace("␣", " ")
    before = page.locator(TOKENS).first.text_content()
    card.locator("li:nth-child(2) button").click()
    expect(page.locator("#completion-prompt")).to_have_value(f"Once upon a time{before}{second}")
    expect(page.locator(TOKENS)).to_have_count(12)


def test_tokens_are_read_by_the_keyboard_and_the_prompt_too(page: Page) -> None:
    page.fill("#completion-prompt", "One dragon 🐉")
    page.check("#completion-echo")
    complete(page)
    texts = page.locator(TOKENS).all_text_contents()
    assert texts[:4] == ["<|begin_of_text|>", "O", "ne", " dragon"]
    assert "⟨f0 9f 90⟩" in texts
    expect(page.locator(f"{TOKENS}.is-special").first).to_have_text(texts[0])
    page.locator(TOKENS).first.focus()
    card = page.locator("#token-card")
    expect(card).to_contain_text("nothing before it")
    page.keyboard.press("ArrowRight")
    expect(card.locator(".token-card-head code")).to_have_text(texts[1])
    logprob = float(card.locator(".token-card-head span").inner_text().split()[-1])
    assert -math.inf < logprob <= 0
    page.keyboard.press("Enter")
    expect(card.locator("button").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(TOKENS).nth(1)).to_be_focused()
    expect(card).to_be_hidden()
    page.reload()
    expect(page.locator("#completion-foot")).to_contain_text("resumed")
    assert page.locator(TOKENS).all_text_contents() == texts


@pytest.mark.parametrize("is_echoed", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_text_is_forked_at_a_token(page: Page, is_echoed: bool) -> None:
    page.fill("#completion-prompt", "Once upon a time")
    page.fill("#completion-temperature", "1")
    page.set_checked("#completion-echo", is_echoed)
    complete(page)
    tokens = page.locator(TOKENS)
    texts = tokens.all_text_contents()
    card = page.locator("#token-card")
    if is_echoed:
        tokens.nth(1).focus()
        expect(card).to_be_visible()
        expect(card.locator(".token-card-fork")).to_have_count(0)  # of the prompt
    place = len(texts) - 4
    source = page.locator("#completion-foot .chip.is-button").inner_text()
    tokens.nth(place).focus()
    with page.expect_request("**/fork") as sent:
        card.locator(".token-card-fork").click()
    assert sent.value.post_data_json == {"at": 8, "stream": True, "store": True}
    back = page.locator("#completion-foot button", has_text="Forked behind 8 tokens")
    expect(back).to_be_visible(timeout=WAIT_MS)
    assert tokens.all_text_contents()[:place] == texts[:place]
    page.reload()
    back.click()
    expect(page.locator("#completion-foot .chip.is-button")).to_have_text(source)
    expect(tokens).to_have_text(texts, use_inner_text=False)
