"""Tokenizers come once, later, or never; nobody waits for another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from detok import tokenizer_cache
from detok.tokenizer_cache import TokenizerCache
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import BrokerUnavailable, ConfigError
from tests.detok.scripted import make_bundle, make_tokenizer
from tests.eventually import eventually
from tests.time_to_err import time_to_err


class FakeCatalog:
    def __init__(self) -> None:
        self.errors: dict[str, list[Exception]] = {}
        self.asked: list[str] = []
        self.bundle_of: Callable[[str], TokenizerBundle] = lambda _: make_bundle(make_tokenizer())

    async def bundle(self, content_hash: str) -> TokenizerBundle:
        self.asked.append(content_hash)
        errors = self.errors.get(content_hash, [])
        if errors:
            raise errors.pop(0)
        return self.bundle_of(content_hash)


@asynccontextmanager
async def running(cache: TokenizerCache) -> AsyncIterator[None]:
    task = asyncio.create_task(cache.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> FakeCatalog:
    monkeypatch.setattr(tokenizer_cache, "_RETRY_S", 0.001)
    return FakeCatalog()


def make_cache(catalog: FakeCatalog, loaded: list[str], capacity: int = 2) -> TokenizerCache:
    return TokenizerCache(catalog, capacity, loaded.append)  # type: ignore[arg-type]


async def test_it_is_fetched_once_and_told(catalog: FakeCatalog) -> None:
    loaded: list[str] = []
    cache = make_cache(catalog, loaded)
    async with running(cache):
        assert cache.get("a") is None
        assert cache.get("a") is None
        await eventually(lambda: loaded == ["a"])
        tokenizer = cache.get("a")
        assert tokenizer is not None
        assert tokenizer.decode(tokenizer.encode("dog").ids) == "dog"
    assert catalog.asked == ["a"]


async def test_a_broker_that_is_away_is_asked_for_ever(catalog: FakeCatalog) -> None:
    loaded: list[str] = []
    cache = make_cache(catalog, loaded)
    catalog.errors["a"] = [BrokerUnavailable("away") for _ in range(50)]
    async with running(cache):
        cache.get("a")
        await eventually(lambda: loaded == ["a"])
        assert cache.get("a") is not None


async def test_one_that_is_not_there_is_given_up_and_others_do_not_wait(
    catalog: FakeCatalog,
) -> None:
    loaded: list[str] = []
    cache = make_cache(catalog, loaded)
    catalog.errors["gone"] = [ConfigError("not in the store") for _ in range(20)]
    async with running(cache):
        cache.get("gone")
        cache.get("b")
        await eventually(lambda: loaded == ["b", "gone"])
        assert cache.is_unusable("gone")
        assert not cache.is_unusable("b")
        assert cache.get("gone") is None
        await time_to_err(0.01)
    assert catalog.asked.count("gone") == 20


async def test_a_broken_file_is_unusable(catalog: FakeCatalog) -> None:
    loaded: list[str] = []
    cache = make_cache(catalog, loaded)
    catalog.bundle_of = lambda _: TokenizerBundle({"tokenizer.json": b"{}"})
    async with running(cache):
        cache.get("a")
        await eventually(lambda: loaded == ["a"])
    assert cache.is_unusable("a")


async def test_the_one_used_longest_ago_is_forgotten(catalog: FakeCatalog) -> None:
    loaded: list[str] = []
    cache = make_cache(catalog, loaded)
    async with running(cache):
        for name in ("a", "b"):
            cache.get(name)
            await eventually(lambda name=name: name in loaded)  # type: ignore[misc]
        cache.get("a")
        cache.get("c")
        await eventually(lambda: "c" in loaded)
        assert cache.get("a") is not None
        assert cache.get("b") is None
