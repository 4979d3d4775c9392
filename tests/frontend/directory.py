"""A model directory without NATS."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry
from tokenizers import AddedToken, Tokenizer

from frontend.audio.loader import AudioLoader
from frontend.images.fetcher import ImageFetcher
from frontend.images.loader import ImageLoader
from frontend.inference.admission.admission import Admission
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.limits.work_limits import AudioLimits, FetchPolicy, ImageLimits, VideoLimits
from frontend.metrics import FrontendMetrics
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.chat.chat_request import ChatRequests
from frontend.surfaces.completions.completion_request import CompletionRequests
from frontend.surfaces.generate.generate_request import GenerateRequests
from frontend.surfaces.infill.infill_request import InfillRequests
from frontend.surfaces.tools.answer_styles import AnswerStyles
from frontend.tenants.ledger import TenantLedger
from shared.catalog.model_status import PoolHeartbeats
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import BrokerUnavailable
from shared.protocol.model_cards import ModelCard
from tests.frontend.tiny_model import CHATML, make_bundle, make_card, make_tokenizer

FIM_MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


class FakeCatalog:
    """Cards and one bundle."""

    def __init__(self, bundle: TokenizerBundle, *cards: ModelCard) -> None:
        self._bundle = bundle
        self._cards = list(cards)
        self.num_reads = 0
        self.is_away = False

    async def cards(self) -> list[ModelCard]:
        self.num_reads += 1
        if self.is_away:
            raise BrokerUnavailable("away")
        return self._cards

    async def heartbeats(self) -> PoolHeartbeats:
        return PoolHeartbeats({}, {})

    async def bundle(self, content_hash: str) -> TokenizerBundle:
        assert content_hash == self._bundle.content_hash
        await asyncio.sleep(0)
        return self._bundle


def make_directory(
    *names: str, chat_template: str | None = CHATML, **changes: Any
) -> ModelDirectory:
    bundle = make_bundle(chat_template)
    cards = [make_card(bundle, name, **changes) for name in names or ("tiny",)]
    return ModelDirectory(FakeCatalog(bundle, *cards))  # type: ignore[arg-type]


def tokenizer_with(*marks: str) -> Tokenizer:
    """The tiny model's, with these as single tokens."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    return tokenizer


def make_filling_directory(*marks: str) -> ModelDirectory:
    """Of a model whose tokenizer has these marks."""
    files = dict(make_bundle().files)
    files["tokenizer.json"] = tokenizer_with(*marks).to_str().encode()
    bundle = TokenizerBundle(files)
    card = make_card(bundle, vocab_size=300)
    return ModelDirectory(FakeCatalog(bundle, card))  # type: ignore[arg-type]


def make_image_loader() -> ImageLoader:
    limits = ImageLimits(max_images=3, max_bytes=20_000, max_pixels=1_000_000, max_tokens=900)
    videos = VideoLimits(max_videos=1, max_bytes=100_000, max_frames=40, max_tokens=400)
    fetcher = ImageFetcher(FetchPolicy(True, False, (), 10.0))
    return ImageLoader(limits, videos, AudioLoader(AudioLimits(2_200_000, 60.0, 3)), fetcher)


def make_admission() -> Admission:
    """Of tenants alone: there is no queue."""
    nothing: Any = None
    return Admission(
        TenantLedger(), nothing, nothing, nothing, FrontendMetrics(CollectorRegistry()).acceptance
    )


class AllRequests:
    """The kinds of bodies that become text, on one directory."""

    def __init__(self, directory: ModelDirectory, styles: AnswerStyles | None = None) -> None:
        encoder = PromptEncoder()
        self.chat = ChatRequests(directory, encoder, make_image_loader(), styles=styles)
        self.completions = CompletionRequests(directory, encoder)
        self.generate = GenerateRequests(directory, encoder)
        self.infill = InfillRequests(directory, encoder)
