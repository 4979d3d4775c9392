"""The images of a request: fetched, checked, and made into what the model reads."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from frontend.images.data_url import SCHEME, BadDataUrl, read_data_url
from frontend.images.fetcher import FetchFailed, ImageFetcher
from frontend.images.pixels import BadImage, read_pixels
from frontend.images.source import ImageSource
from frontend.limits.image_limits import ImageLimits
from frontend.models.model_directory import ServedModel
from shared.errors import UnsupportedParameter
from shared.protocol.model_cards import VisionCard

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """What the model reads of an image."""

    pixels: bytes
    digest: bytes

    @classmethod
    def of(cls, pixels: bytes) -> LoadedImage:
        return cls(pixels, hashlib.sha256(pixels).digest())


class ImageLoader:
    """A few threads: the event loop decodes nothing."""

    def __init__(self, limits: ImageLimits, fetcher: ImageFetcher, num_threads: int = 2) -> None:
        self._limits = limits
        self._fetcher = fetcher
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="image")

    async def close(self) -> None:
        await self._fetcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def load(
        self, sources: Sequence[ImageSource], model: ServedModel, tenant: str
    ) -> list[LoadedImage]:
        """In their order, for a tenant. Raises InvalidRequest, which names the first wrong one."""
        vision = self.vision(sources, model)
        if vision is None or not sources:
            return []
        outcomes = await asyncio.gather(
            *(self._load(source, vision, tenant) for source in sources), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, LoadedImage)]

    def vision(self, sources: Sequence[ImageSource], model: ServedModel) -> VisionCard | None:
        """How the model sees; None for one that takes no images, when there are none.

        Raises InvalidRequest.
        """
        vision = model.card.vision
        if vision is None and sources:
            raise UnsupportedParameter(
                sources[0].where, f"is an image, and the model '{model.name}' takes no images"
            )
        if len(sources) > self._limits.max_images:
            raise sources[self._limits.max_images].refused(
                f"is image {self._limits.max_images + 1} of {len(sources)}, a request may have "
                f"{self._limits.max_images}"
            )
        return vision

    async def _load(self, source: ImageSource, vision: VisionCard, tenant: str) -> LoadedImage:
        limits = self._limits
        try:
            data = await self._bytes_of(source, tenant)
            return await self._in_thread(
                lambda: LoadedImage.of(read_pixels(data, vision, limits.max_pixels))
            )
        except (BadDataUrl, FetchFailed) as exc:
            raise source.refused(f"is an image whose URL {exc}") from exc
        except BadImage as exc:
            raise source.refused(f"is an image that {exc}") from exc

    async def _bytes_of(self, source: ImageSource, tenant: str) -> bytes:
        if source.url[: len(SCHEME)].lower() == SCHEME:
            return await self._in_thread(lambda: read_data_url(source.url, self._limits.max_bytes))
        return await self._fetcher.fetch(source.url, tenant)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
