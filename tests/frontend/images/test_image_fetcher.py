"""Images by URL: which hosts are asked, under which address, and how much of an answer is taken."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from frontend.images.fetcher import FetchFailed, ImageFetcher
from frontend.images.host_resolver import HostResolver, is_public
from frontend.limits.work_limits import FetchPolicy
from tests.tls_files import make_tls_files

POLICY = FetchPolicy(True, True, (), 10.0)
MAX_BYTES = 1000
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"],
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:7f00:1::", "fe80::1%eth0",
        "192.0.0.8", "192.0.0.192", "192.88.99.1", "168.63.129.16", "192.175.48.1",
        "100.100.100.200",
        "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1",
        "2001:20::1", "3fff::1", "5f00::1", "2620:4f:8000::1", "2002:101:101::1",
        "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "100::1",
    ],
)  # fmt: skip
def test_addresses_that_not_everybody_can_reach(address: str) -> None:
    assert not is_public(address)


@dataclass
class Host:
    """An HTTP server on the loopback interface; tells what it was asked."""

    port: int
    answers: dict[str, bytes]
    heads: list[str] = field(default_factory=list)


@asynccontextmanager
async def host(answers: dict[str, bytes], tls: ssl.SSLContext | None = None) -> AsyncIterator[Host]:
    """A path that has no answer waits for ever."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            running.heads.append(head)
            answer = running.answers.get(head.split()[1])
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    running = Host(server.sockets[0].getsockname()[1], answers)
    async with server:
        yield running


def fetcher(
    *addresses: str,
    policy: FetchPolicy = POLICY,
    may_connect: Callable[[str], bool] = lambda address: True,
    tls: ssl.SSLContext | None = None,
) -> tuple[ImageFetcher, list[str]]:
    """Every name has these addresses; tells which names were asked for."""
    asked: list[str] = []

    def look_up(name: str, port: int) -> list[str]:
        asked.append(name)
        return list(addresses)

    resolver = HostResolver(look_up)
    return ImageFetcher(policy, resolver=resolver, may_connect=may_connect, tls=tls), asked


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """The name is looked up once: what it means a moment later is not asked."""
    checked: list[str] = []

    def may_connect(address: str) -> bool:
        checked.append(address)
        return True

    async with host({"/a.png?x=1": OK}) as running:
        images, asked = fetcher("127.0.0.1", may_connect=may_connect)
        url = f"http://pictures.example:{running.port}/a.png?x=1#part"
        assert await images.fetch(url, MAX_BYTES) == b"hello"
        assert await images.fetch(url, MAX_BYTES) == b"hello"
        await images.close()
    assert asked == ["pictures.example"] * 2
    assert checked == ["127.0.0.1"] * 2
    [head, _] = running.heads
    assert f"host: pictures.example:{running.port}\r\n" in head.lower()
    assert "cookie" not in head.lower()


@pytest.mark.e2e
async def test_the_certificate_must_be_the_names(tmp_path: Path) -> None:
    make_tls_files(tmp_path, "DNS:pictures.example")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with host({"/": OK}, server) as running:
        images, _ = fetcher("127.0.0.1", tls=client, policy=replace(POLICY, allow_http=False))
        assert (
            await images.fetch(f"https://pictures.example:{running.port}/", MAX_BYTES) == b"hello"
        )
        with pytest.raises(FetchFailed, match="could not be fetched: ConnectError"):
            await images.fetch(f"https://other.example:{running.port}/", MAX_BYTES)
        await images.close()
        unknown, _ = fetcher("127.0.0.1")
        with pytest.raises(FetchFailed, match="could not be fetched: ConnectError"):
            await unknown.fetch(f"https://pictures.example:{running.port}/", MAX_BYTES)
        await unknown.close()


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["1.1.1.1", "10.0.0.1"], ["::1"]])
async def test_private_hosts_are_not_asked(addresses: list[str]) -> None:
    async with host({"/": OK}) as running:
        images, _ = fetcher(*addresses, may_connect=is_public)
        with pytest.raises(FetchFailed, match="an address that is not public"):
            await images.fetch(f"http://pictures.example:{running.port}/", MAX_BYTES)
    assert running.heads == []


@pytest.mark.parametrize("name", ["127.0.0.1", "2130706433", "0x7f.1", "localhost", "[::1]"])
async def test_other_ways_to_write_ourselves(name: str) -> None:
    async with host({"/": OK}) as running:
        with pytest.raises(FetchFailed, match=r"not public|cannot be found"):
            await ImageFetcher(POLICY).fetch(f"http://{name}:{running.port}/", MAX_BYTES)
    assert running.heads == []


async def test_redirects_are_checked_like_the_first_url() -> None:
    def moved(to: str) -> bytes:
        return f"HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n".encode()

    answers = {
        "/near": moved("/image"),
        "/image": OK,
        "/private": moved("http://inner.example/"),
        "/scheme": moved("file:///etc/passwd"),
        "/nowhere": moved(""),
        "/circle": moved("/circle"),
    }

    def look_up(name: str, port: int) -> list[str]:
        return ["10.0.0.1" if name == "inner.example" else "127.0.0.1"]

    async with host(answers) as running:
        images = ImageFetcher(
            POLICY,
            resolver=HostResolver(look_up),
            may_connect=lambda each: each != "10.0.0.1",
        )
        base = f"http://pictures.example:{running.port}"
        assert await images.fetch(f"{base}/near", MAX_BYTES) == b"hello"
        for path, sentence in (
            ("private", "not public"),
            ("scheme", "must begin with https:// or http://"),
            ("nowhere", "does not say to which"),
            ("circle", "leads to more than 3 others"),
        ):
            with pytest.raises(FetchFailed, match=sentence):
                await images.fetch(f"{base}/{path}", MAX_BYTES)
        await images.close()
    assert len(running.heads) == 2 + 3 + 4


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "with the status 404"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001, "holds more than 1000 bytes"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx",
            "with a compressed body",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx", "could not be fetched"),
        (b"no HTTP\r\n\r\n", "could not be fetched"),
        (None, "did not give it within 0.5 s"),
    ],
)
async def test_answers_that_are_not_taken(answer: bytes | None, sentence: str) -> None:
    async with host({} if answer is None else {"/": answer}) as running:
        timeout_s = 0.5 if answer is None else 10.0
        images, _ = fetcher("127.0.0.1", policy=replace(POLICY, timeout_s=timeout_s))
        with pytest.raises(FetchFailed, match=sentence):
            await images.fetch(f"http://pictures.example:{running.port}/", MAX_BYTES)
        await images.close()


@pytest.mark.parametrize(
    ("url", "change", "sentence"),
    [
        ("http://a.example/", {"allow_http": False}, "must begin with https://$"),
        ("ftp://a.example/", {}, "must begin with https:// or http://"),
        ("/etc/passwd", {}, "must begin with"),
        ("https:///x", {}, "must begin with"),
        ("https://me:secret@a.example/", {}, "must not hold a user or a password"),
        ("https://a.example:x/", {}, "cannot be read"),
        ("https://a.example/", {"is_on": False}, "none are fetched here"),
        ("https://a.example/", {"allowed_domains": ("b.example",)}, "is not among"),
        ("https://ab.example/", {"allowed_domains": ("b.example",)}, "is not among"),
        ("https://b.example.evil/", {"allowed_domains": ("b.example",)}, "is not among"),
        ("https://b.example/", {"allowed_domains": ("",)}, "is not among"),
    ],
)
async def test_urls_that_are_not_asked(url: str, change: dict[str, Any], sentence: str) -> None:
    images, asked = fetcher("127.0.0.1", policy=replace(POLICY, **change))
    with pytest.raises(FetchFailed, match=sentence):
        await images.fetch(url, MAX_BYTES)
    assert asked == []


@pytest.mark.parametrize("name", ["b.example", "x.B.example", "b.example."])
async def test_domains_that_are_allowed(name: str) -> None:
    async with host({"/": OK}) as running:
        policy = replace(POLICY, allowed_domains=("b.example",))
        images, _ = fetcher("127.0.0.1", policy=policy)
        assert await images.fetch(f"http://{name}:{running.port}/", MAX_BYTES) == b"hello"
        await images.close()
