"""The page as axe-core judges it: every view of it, in light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.frontend.page.conftest import PHONE, WAIT_MS, Visit

pytestmark = [pytest.mark.integration, pytest.mark.e2e]

Visitor = Callable[..., Visit]
WIDE = {"width": 1280, "height": 800}
AXE = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
ANSWER = """Look: $a^2$ and `code`, [there](https://a.example).

| a | b |
|---|---|
| 1 | 2 |

- [x] done

```python
x = {"a": 1}  # a comment
```
"""


def violations(page: Page) -> list[Any]:
    """Each with the places where it was found. No text may need a mouse that hovers, either."""
    assert page.locator("body [title]").count() == 0
    found: list[Any] = page.evaluate(
        """async () => (await axe.run(document, { resultTypes: ['violations'] })).violations
            .map(({ id, nodes }) => [id, nodes.map(({ html, any }) => [html, any[0]?.message])])"""
    )
    return found


@pytest.mark.parametrize(
    ("size", "scheme"),
    [pytest.param(WIDE, "light", marks=pytest.mark.nightly), (PHONE, "dark")],
    ids=["wide-light", "phone-dark"],
)
def test_nothing_keeps_anybody_out(
    visit: Visitor, url: str, size: dict[str, int], scheme: str
) -> None:
    page = visit(url, viewport=size, color_scheme=scheme, reduced_motion="reduce").with_key()
    page.evaluate(AXE)
    assert violations(page) == []
    page.fill("#composer-input", "Name three colours.")
    page.press("#composer-input", "Enter")
    expect(page.locator(".message:last-child .is-worker")).to_be_visible(timeout=WAIT_MS)
    page.get_by_label("Edit", exact=True).last.click()
    page.fill(".editor", ANSWER)
    page.get_by_text("Save").click()
    expect(page.locator(".katex, .code-comment")).to_have_count(2)
    assert violations(page) == []
    for drawer in ("sidebar", "settings"):
        if page.locator(f"#{drawer}-toggle").get_attribute("aria-expanded") == "false":
            page.click(f"#{drawer}-toggle")
        assert violations(page) == []
        page.keyboard.press("Escape")
    page.evaluate("window.location.hash = 'completions'")
    page.fill("#completion-max_tokens", "5")
    page.click("#completion-run")
    expect(page.locator("#completion-foot")).to_contain_text("out", timeout=WAIT_MS)
    page.locator("#completion-tokens .token").first.focus()
    assert violations(page) == []
    page.evaluate("window.location.hash = 'cluster'")
    expect(page.locator(".cl-row")).to_have_count(1)
    assert violations(page) == []
