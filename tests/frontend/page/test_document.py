"""The page as one document: what is in it, what comes with it, and what it loads later."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re

import pytest
from starlette.requests import Request
from starlette.responses import Response

from frontend.page.page_document import PageDocument
from frontend.page.page_libraries import FOLDER, read_manifest
from tests.frontend.conftest import Stack

MAX_COMPRESSED_BYTES = 80_000
MAX_BYTES_IN_ALL = 500_000  # compressed, with all that it may ever load
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


def test_it_is_one_small_document_that_names_nothing_to_load(document: PageDocument) -> None:
    html = document.body.decode()
    assert len(gzip.compress(document.body)) < MAX_COMPRESSED_BYTES
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
    parts = [path.name for path in document.folder.iterdir() if path.suffix in (".js", ".css")]
    assert sorted(named) == sorted(parts)


def test_libraries_are_those_of_the_manifest_with_their_licences() -> None:
    libraries = read_manifest().libraries
    files = {file.name: file for library in libraries for file in library.files}
    assert {path.name for path in FOLDER.iterdir()} == {*files, "manifest.json"}
    for name, file in files.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == file.sha256, name
    for library in libraries:
        assert library.licence in ("MIT", "BSD-3-Clause")
        (text,) = [file.name for file in library.files if file.name.endswith(".LICENSE")]
        assert library.licence.partition("-")[0] in (FOLDER / text).read_text()
        script = next(file.name for file in library.files if file.name.endswith(".js"))
        assert library.version in (FOLDER / script).read_text()


def test_all_that_it_may_ever_load_is_small(document: PageDocument) -> None:
    contents = [(FOLDER / name).read_bytes() for name in document.libraries.files]
    loaded = [gzip.compress(content) for content in [document.body, *contents]]
    assert sum(map(len, loaded)) < MAX_BYTES_IN_ALL


def test_no_part_has_a_text_of_several_lines(document: PageDocument) -> None:
    """Its margin would be lost when the parts are joined."""
    for part in document.folder.glob("*.js"):
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


def hash_of(content: bytes) -> str:
    """As a policy writes it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


def test_the_policy_names_the_hashes_of_script_and_style_and_nothing_looser(
    document: PageDocument,
) -> None:
    policy = policy_of(document)
    assert policy["default-src"] == ["'none'"]
    assert policy["connect-src"] == ["'self'"]
    names = ("markdown-it.min.js", "katex.min.js", "highlight.min.js")
    scripts = [hash_of((FOLDER / name).read_bytes()) for name in names]
    for kind, others in (("script", scripts), ("style", [])):
        (part,) = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), document.body, flags=re.DOTALL)
        assert policy[f"{kind}-src"] == [hash_of(part), *others]
    assert policy["font-src"] == ["'self'"]
    assert policy["trusted-types"] == ["jetflock-libraries"]
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


@pytest.mark.integration
async def test_a_library_has_an_address_that_changes_with_it(
    document: PageDocument, stack: Stack
) -> None:
    running = await stack.start_frontend(api_key=("key",))
    async with running.client() as client:
        library = await client.get(f"/{document.libraries.address('katex.min.js')}")
        font = await client.get(f"/{document.libraries.address('KaTeX_Main-Bold.woff2')}")
        for name in ("manifest.json", "other.js", "..%2Fpage.html"):
            assert (await client.get(f"/page/{name}")).status_code == 404
    assert library.content == (FOLDER / "katex.min.js").read_bytes()
    assert library.headers["content-encoding"] == "gzip"
    assert "immutable" in library.headers["cache-control"]
    assert font.headers["content-type"] == "font/woff2"
