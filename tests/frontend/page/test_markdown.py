"""Markdown as the page shows it: in the browser, without a service."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from starlette.requests import Request

from frontend.page.page_document import PageDocument
from frontend.page.page_libraries import FOLDER

pytestmark = pytest.mark.e2e

SHOW = """async texts => {
    for (const name of Object.keys(LIBRARY_SCRIPTS)) await loadLibrary(name);
    MarkdownView.reader ??= newMarkdownReader();
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

1. loose

2. list with $a$

before
$$
a \\\\ b
= c
$$
\\[ x^2

---
The end, with an open **end
```
and an open fence
"""


@contextmanager
def opened(browser: Browser) -> Iterator[Page]:
    """The document under its policy, and its libraries: no service answers it."""
    page = browser.new_page()
    document = PageDocument()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.route("**", lambda route: route.abort())
    page.route(re.compile("^http://page.example/$"), lambda route: fulfil(route, document))
    page.route("http://page.example/page/*", fulfil_library)
    page.goto("http://page.example/")
    yield page
    page.close()
    assert [text for text in complaints if "Failed to load resource" not in text] == []


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with opened(browser) as page:
        yield page


def fulfil(route: Route, document: PageDocument) -> None:
    answer = document.response(Request({"type": "http", "method": "GET", "headers": []}))
    route.fulfill(body=document.body, headers=dict(answer.headers))


def fulfil_library(route: Route) -> None:
    name = route.request.url.partition("?")[0].rpartition("/")[2]
    kind = "font/woff2" if name.endswith(".woff2") else "text/javascript"
    route.fulfill(body=(FOLDER / name).read_bytes(), content_type=kind)


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


@pytest.mark.parametrize(
    "text",
    [
        *("*" * 20_000, "[" * 20_000, "`a" * 10_000, "> " * 10_000, "- " * 10_000),
        *("\\(" * 10_000, "$a" * 10_001, "$" * 10_000, "$$\n" * 5_000, "\\[a\n" * 5_000),
    ],
    ids=lambda text: text[:3],
)
def test_what_means_nothing_takes_no_time_however_much_there_is(page: Page, text: str) -> None:
    show(page, "")
    script = "text => { const t = performance.now(); MarkdownView.reader.parse(text, {});"
    assert page.evaluate(script + "return performance.now() - t; }", text) < 5_000


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("so $a_1$ and \\(b*c*d\\).", ["a_1", "b*c*d"]),
        ("$$x$$ in a line", ["x"]),
        ("so:\n\\[\n- a\n= b\n\\]\nthen", ["- a\n= b"]),
        ("- one\n  $$\n  a\n  $$\n- two", ["a"]),
        ("It costs $5 or $10, $ 3 or 4$, even 5$-10$.", []),
        ("`$a$`\n\n    $$a$$\n\n```\n$$a$$\n```", []),
        ("$$\nopen\n\n$$", []),
    ],
)
def test_formulas_are_told_from_money_and_code(page: Page, text: str, formulas: list[str]) -> None:
    shown = show(page, text)
    labels = re.findall(r'class="formula[^>]* aria-label="([^"]*)"', shown)
    assert labels == formulas
    assert shown.count('class="katex"') == len(formulas)


def test_a_formula_neither_loads_nor_links_nor_leaves_its_place(page: Page) -> None:
    shown = show(
        page,
        r"$\href{javascript:alert(1)}{a}$ $\includegraphics{https://img.example/x.png}$ "
        r"$\htmlClass{bar}{b}$ $\htmlStyle{position:fixed}{c}$ $\url{https://u.example}$ "
        r"$\text{<img src=x onerror=alert(1)>}$ $\rule{900em}{900em}$ $\def\x{\x\x}\x$",
    )
    assert shown.count('class="katex"') > 4
    assert "<img" not in shown
    assert " href=" not in shown
    assert 'class="bar' not in shown
    assert not re.search(r'style="[^"]*(?:position|900em)', shown)
    box = page.evaluate(
        """async text => {
            const root = byId('transcript').appendChild(el('div', { class: 'markdown' }));
            new MarkdownView(root).show(text);
            const { overflowX, overflowY } = getComputedStyle(root);
            root.remove();
            return [overflowX, overflowY];
        }""",
        r"$\kern-500em x$",
    )
    assert box == ["clip", "clip"]


def test_code_has_colours_and_stays_text(page: Page) -> None:
    code = 'x = "</code><img src=x onerror=alert(1)>"  # <b>'
    shown = show(page, f"```python\n{code}\n```")
    assert 'class="code-string"' in shown
    assert 'class="code-comment"' in shown
    assert "<img" not in shown
    assert "<b>" not in shown
    for language in ("nobody-knows", "__proto__", "<b>", "html"):
        shown = show(page, f"```{language}\n<script>1</script>\n```")
        assert "<script" not in shown
        assert "&lt;" in shown


def test_a_library_comes_when_a_text_needs_it(browser: Browser) -> None:
    scripts = """() => performance.getEntriesByType('resource')
        .map(({ name }) => /page\\/(.*\\.js)/.exec(name)?.[1]).filter(Boolean)"""
    with opened(browser) as page:
        show_there = "text => new MarkdownView(byId('transcript')).show(text)"
        page.evaluate(show_there, "*word*")
        expect(page.locator("#transcript em")).to_have_text("word")
        assert page.evaluate(scripts) == ["markdown-it.min.js"]
        page.evaluate(show_there, "$a$")
        expect(page.locator("#transcript .katex")).to_have_count(1)
        assert page.evaluate(scripts) == ["markdown-it.min.js", "katex.min.js"]


def test_a_text_is_shown_as_it_was_written_where_a_library_does_not_come(browser: Browser) -> None:
    with opened(browser) as page:
        page.route("http://page.example/page/*", lambda route: route.abort())
        page.evaluate("text => new MarkdownView(byId('transcript')).show(text)", "*<b>word*")
        expect(page.locator("#transcript")).to_have_text("*<b>word*")
