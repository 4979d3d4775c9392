"""The models that can be asked for: their cards, kept fresh, with tokenizer and chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from frontend.answers.token_texts import TokenTexts
from frontend.chat_template import ChatTemplate
from frontend.tokens.tokenizer_facts import TokenizerFacts
from shared.errors import (
    BrokerError,
    ConfigError,
    InternalError,
    InvalidRequest,
    JetflockError,
    ModelNotFound,
    ServiceUnavailable,
)
from shared.log import get_logger
from shared.model_catalog import ModelCatalog
from shared.protocol.model_cards import AdapterCard, ModelCard
from shared.tokenizer_bundle import TokenizerBundle

REFRESH_INTERVAL_S = 1.0
_MISS_INTERVAL_S = 0.2  # unknown names do not make us read the cards more often than this
_LOAD_TIMEOUT_S = 60.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelText:
    """How a model reads text: shared by all cards with the same tokenizer files."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    token_texts: TokenTexts
    facts: TokenizerFacts


class NamedModel(NamedTuple):
    """What a name stands for: a model, or a LoRA adapter of one."""

    card: ModelCard
    adapter: AdapterCard | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model card and how to talk to the model."""

    card: ModelCard
    text: ModelText
    adapter: AdapterCard | None = None  # that was asked for, on top of the model

    @property
    def name(self) -> str:
        """By which it was asked for."""
        return self.card.name if self.adapter is None else self.adapter.name

    def chat_template(self) -> ChatTemplate:
        """Raises InvalidRequest when the model has none."""
        if self.text.chat_template is None:
            raise InvalidRequest(
                f"The model '{self.name}' has no chat template; use /v1/completions.",
                param="model",
            )
        return self.text.chat_template


class ModelDirectory:
    """Model cards by name, read from KV every second and when a name is not known."""

    def __init__(self, catalog: ModelCatalog) -> None:
        self._catalog = catalog
        self._cards: dict[str, ModelCard] = {}
        self._named: dict[str, NamedModel] = {}
        self._texts: dict[str, asyncio.Task[ModelText]] = {}  # by tokenizer hash
        self._refreshed_at = float("-inf")
        self._refresh_lock = asyncio.Lock()

    async def run(self) -> None:
        """Keep the cards fresh until cancelled; tokenizers are loaded before they are needed."""
        try:
            while True:
                await self._refresh_quietly()
                for card in self._cards.values():
                    self._load(card.tokenizer_hash)
                await asyncio.sleep(REFRESH_INTERVAL_S)
        finally:
            for task in self._texts.values():
                task.cancel()

    @property
    def is_fresh(self) -> bool:
        """Whether the cards were read lately."""
        return asyncio.get_running_loop().time() - self._refreshed_at < 5 * REFRESH_INTERVAL_S

    def named(self) -> Sequence[NamedModel]:
        """All that can be asked for: models, then adapters."""
        return tuple(self._named.values())

    async def find(self, name: str) -> NamedModel:
        """Raises ModelNotFound, or ServiceUnavailable when the cards cannot be read."""
        if name not in self._named:
            await self._refresh_after_miss()
        found = self._named.get(name)
        if found is not None:
            return found
        if not self.is_fresh:
            raise ServiceUnavailable("The model cards cannot be read now.")
        raise ModelNotFound(name)

    async def model(self, name: str) -> ServedModel:
        """Raises ModelNotFound, or ServiceUnavailable while the tokenizer cannot be fetched."""
        card, adapter = await self.find(name)
        return ServedModel(card, await self.text(card.tokenizer_hash), adapter)

    async def only_model(self) -> ServedModel:
        """The model, when there is exactly one, whatever its adapters. Raises InvalidRequest."""
        if not self._cards:
            await self._refresh_after_miss()
        if len(self._cards) != 1:
            raise InvalidRequest(
                f"'model' is required: {len(self._cards)} models are served", param="model"
            )
        return await self.model(next(iter(self._cards)))

    async def text(self, tokenizer_hash: str) -> ModelText:
        """Also of a model that is not served any more.

        Raises ServiceUnavailable or InternalError.
        """
        task = self._load(tokenizer_hash)
        if task.done():
            return task.result()
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                return await asyncio.shield(task)
        except (BrokerError, TimeoutError) as exc:
            raise ServiceUnavailable("The model's tokenizer cannot be fetched now.") from exc
        except ConfigError as exc:
            raise InternalError(f"The model's tokenizer cannot be used: {exc}") from exc

    def _load(self, tokenizer_hash: str) -> asyncio.Task[ModelText]:
        task = self._texts.get(tokenizer_hash)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._load_text(tokenizer_hash))
            self._texts[tokenizer_hash] = task
        return task

    async def _load_text(self, tokenizer_hash: str) -> ModelText:
        try:
            bundle = await self._catalog.bundle(tokenizer_hash)
            text = await asyncio.to_thread(_model_text, bundle)
        except JetflockError as exc:
            log.warning("tokenizer_not_loaded", tokenizer=tokenizer_hash, error=str(exc))
            raise
        log.info("tokenizer_loaded", tokenizer=tokenizer_hash)
        return text

    async def _refresh_after_miss(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._refresh_lock:
            if loop.time() - self._refreshed_at > _MISS_INTERVAL_S:
                await self._refresh_quietly()

    async def _refresh_quietly(self) -> None:
        try:
            cards = await self._catalog.cards()
        except BrokerError as exc:
            log.debug("model_cards_not_read", error=str(exc))
            return
        self._refreshed_at = asyncio.get_running_loop().time()
        known = {card.name: card for card in cards}
        for name in known.keys() - self._cards.keys():
            log.info("model_found", model=name, pool=known[name].pool)
        self._cards = known
        adapters = {
            adapter.name: NamedModel(card, adapter) for card in cards for adapter in card.adapters
        }
        named = {name: NamedModel(card) for name, card in known.items()}
        self._named = named | {name: each for name, each in adapters.items() if name not in named}


def _model_text(bundle: TokenizerBundle) -> ModelText:
    """Slow: off the event loop. Raises ConfigError."""
    tokenizer = bundle.tokenizer()
    facts = TokenizerFacts.of(bundle)
    source, special_tokens = facts.chat_template, facts.special_tokens
    template = None if source is None else ChatTemplate(source, special_tokens)
    return ModelText(tokenizer, template, TokenTexts(tokenizer), facts)
