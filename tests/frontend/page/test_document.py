"""The page as one document: what is in it, and what comes with it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re

import pytest
from starlette.requests import Request
from starlette.responses import Response

from frontend.page_document import PageDocument
from tests.frontend.conftest import Stack

MAX_BYTES = 150_000
# Names, not addresses: nothing is loaded from them.
NAMESPACES = ("http://www.w3.org/2000/svg",)


@pytest.fixture(scope="module")
def document() -> PageDocument:
    return PageDocument()


def answer_to(document: PageDocument, **headers: str) -> Response:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return document.response(Request({"type": "http", "method": "GET", "headers": pairs}))


def policy_of(document: PageDocument) -> dict[str, list[str]]:
    text = answer_to(document).headers["content-security-policy"]
    return {words[0]: words[1:] for words in (part.split() for part in text.split("; "))}


def test_it_is_one_small_document_that_loads_nothing(document: PageDocument) -> None:
    html = document.body.decode()
    assert len(document.body) < MAX_BYTES
    assert not re.search(r"<(?:script|img|iframe|link)[^>]* src=", html)
    assert re.findall(r'<link rel="(\w+)"', html) == ["icon"]
    for namespace in NAMESPACES:
        html = html.replace(namespace, "")
    assert not re.search(r"https?://\w", html.replace("http://127.0.0.1", ""))
    assert "@import" not in html
    assert not re.search(
        r"[:\s]url\(", "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    )


def test_every_part_in_the_folder_is_named_once(document: PageDocument) -> None:
    html = (document.folder / "page.html").read_text("utf-8")
    named = re.findall(r'"([\w-]+\.(?:js|css))"', html)
    assert sorted(named) == sorted(p.name for p in document.folder.iterdir() if p.suffix != ".html")


def test_no_part_has_a_text_of_several_lines(document: PageDocument) -> None:
    """Its margin would be lost when the parts are joined."""
    for part in document.folder.glob("*.js"):
        if not part.name.startswith("markdown_"):  # patterns with single backquotes
            for line in part.read_text("utf-8").splitlines():
                assert line.count("`") % 2 == 0, f"{part.name}: {line}"


def test_every_id_that_a_script_or_a_label_names_exists_once(document: PageDocument) -> None:
    html = document.body.decode()
    markup = re.sub(r"<(script|style)>.*?</\1>", "", html, flags=re.DOTALL)
    ids = re.findall(r' id="([\w-]+)"', markup)
    assert len(ids) == len(set(ids))
    named = set(re.findall(r"""byId\(['"]([\w-]+)['"]\)""", html))
    named |= set(re.findall(r' (?:for|aria-controls|aria-labelledby)="([\w-]+)"', markup))
    named |= set(re.findall(r'href="#([\w-]+)"', markup))
    named |= {f"icon-{name}" for name in re.findall(r"icon\('([\w-]+)'\)", html)}
    assert named <= set(ids)
    assert len(named) > 10


def test_the_policy_names_the_hashes_of_script_and_style_and_nothing_looser(
    document: PageDocument,
) -> None:
    policy = policy_of(document)
    assert policy["default-src"] == ["'none'"]
    assert policy["connect-src"] == ["'self'"]
    for kind in ("script", "style"):
        (part,) = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), document.body, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(part).digest()).decode()
        assert policy[f"{kind}-src"] == [f"'sha256-{digest}'"]
    assert "unsafe" not in answer_to(document).headers["content-security-policy"]


def test_markup_has_neither_styles_nor_handlers_of_its_own(document: PageDocument) -> None:
    """The policy would drop them."""
    assert not re.search(rb'<[a-z][^>]* (?:style|on\w+)="', document.body)


def test_the_policy_lets_the_page_speak_to_the_origins_it_was_given() -> None:
    policy = policy_of(PageDocument(("http://admin.example:8080",)))
    assert policy["connect-src"] == ["'self'", "http://admin.example:8080"]


def test_it_is_sent_again_only_when_it_has_changed(document: PageDocument) -> None:
    first = answer_to(document)
    assert first.headers["cache-control"] == "no-cache"
    again = answer_to(document, if_none_match=first.headers["etag"])
    assert again.status_code == 304
    assert again.body == b""
    assert answer_to(document, if_none_match='"older"').status_code == 200


def test_it_is_compressed_for_who_takes_that(document: PageDocument) -> None:
    answer = answer_to(document, accept_encoding="gzip, br")
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(bytes(answer.body)) == document.body
    assert answer.headers["etag"] != answer_to(document).headers["etag"]


@pytest.mark.integration
async def test_it_needs_no_key(stack: Stack) -> None:
    running = await stack.start_frontend(api_key=("key",))
    async with running.client() as client:
        page, head = await client.get("/"), await client.head("/")
        assert (await client.get("/v1/models")).status_code == 401
    assert page.status_code == head.status_code == 200
    assert page.text.startswith("<!doctype html>")
    assert head.content == b""
    assert head.headers["etag"] == page.headers["etag"]
