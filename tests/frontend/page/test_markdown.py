"""Markdown as the page shows it: in the browser, without a service."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from frontend.page_document import PageDocument

pytestmark = pytest.mark.e2e

SHOW = """texts => {
    const root = document.createElement('div');
    const view = new MarkdownView(root);
    for (const text of texts) view.show(text);
    return root.innerHTML;
}"""
TEXT = """# Head

A *word*, **two `three`** and ~~four~~; snake_case_stays, 2 * 3 * 4 too.
A second line <https://a.example/x_(y)> and https://b.example/c.

1. one
2. two
   - inner **bold**

     more of it
- [x] done
- [ ] not yet

> quoted
> - list

| a | b |
|:--|--:|
| `x\\|y` | 2 |

```python
def f(x):  # <b>comment</b>
    return "y" + str(1)
```

---
The end, with an open **end
```
and an open fence
"""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """The document by itself: no service answers it."""
    page = browser.new_page()
    page.route("**", lambda route: route.abort())
    page.route(
        "http://page.example/",
        lambda route: route.fulfill(body=PageDocument().body.decode(), content_type="text/html"),
    )
    page.goto("http://page.example/")
    yield page
    page.close()


def show(page: Page, *texts: str) -> str:
    html: str = page.evaluate(SHOW, list(texts))
    return html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("*a* **b** `c` ~~d~~", "<p><em>a</em> <strong>b</strong> <code>c</code> <s>d</s></p>"),
        ("a_b_c 2 * 3 * 4 \\*d\\*", "<p>a_b_c 2 * 3 * 4 *d*</p>"),
        ("one\ntwo", "<p>one<br>two</p>"),
        ("## h ##", "<h4>h</h4>"),
        ("- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("> a\n> b", "<blockquote><p>a<br>b</p></blockquote>"),
        ("---", "<hr>"),
        ("**open", "<p>**open</p>"),
    ],
)
def test_it_is_read_as_its_writers_mean_it(page: Page, text: str, html: str) -> None:
    assert show(page, text) == html


def test_nothing_of_it_is_html_and_links_lead_to_the_web_alone(page: Page) -> None:
    shown = show(
        page,
        "<img src=x onerror=alert(1)> <script>1</script> [a](javascript:alert(1)) "
        "[b](data:text/html,x) [c](HTTPS://ok.example) ![d](https://img.example/x.png) "
        "[e](mailto:x@y.example) [f](/relative) <a href='https://g.example'>g</a>",
    )
    assert "<img" not in shown
    assert "<script" not in shown
    hrefs = [part.split('"')[0] for part in shown.split('href="')[1:]]
    assert [href.lower() for href in hrefs] == [
        "https://ok.example",
        "https://img.example/x.png",
        "mailto:x@y.example",
        "https://g.example",
    ]
    assert shown.count('rel="noopener noreferrer nofollow"') == len(hrefs)


def test_a_text_that_grows_ends_up_as_if_it_had_come_at_once(page: Page) -> None:
    whole = show(page, TEXT)
    for tag in ("h3", "ol", "ul", "blockquote", "table", "pre", "hr", "strong", "s"):
        assert f"<{tag}" in whole
    rng = random.Random(3)
    for _ in range(20):
        places = sorted(rng.sample(range(len(TEXT)), 30))
        assert show(page, *(TEXT[:place] for place in places), TEXT) == whole
    assert show(page, "other", TEXT) == whole


def test_what_means_nothing_is_text_however_much_there_is(page: Page) -> None:
    for text in ("*" * 20_000, "[" * 20_000, "`a" * 10_000, "> " * 10_000, "- " * 10_000):
        assert page.evaluate("text => MarkdownParser.parse(text).length", text) == 1
