"""The models that can be asked for: their cards, kept fresh, with tokenizer and chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from frontend.models.chat_template import ChatTemplate
from frontend.models.token_search import TokenSearch
from frontend.models.tokenizer_facts import FillInMiddle, TokenizerFacts
from frontend.text.token_texts import TokenTexts
from shared.catalog.model_catalog import ModelCatalog
from shared.catalog.model_status import NO_LIMITS, Limits, ModelStatus, PoolHeartbeats, Standing
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import (
    BrokerError,
    ConfigError,
    InternalError,
    InvalidRequest,
    JetflockError,
    ModelNotFound,
    ServiceUnavailable,
)
from shared.event_wait import LookPace
from shared.protocol.model_cards import AdapterCard, ModelCard
from shared.telemetry.log import get_logger

REFRESH_INTERVAL_S = 1.0
_IDLE_S = 6.0  # while nobody asks for a model
_FRESH_S = 10.0
_EMPTY_INTERVAL_S = 0.2  # while nothing is served somebody waits for the first model
_ABSENCE_S = 60.0  # for which a model stays without a heartbeat: it may be started again
_MISS_INTERVAL_S = 0.2  # unknown names do not make us read the cards more often than this
_HOPELESS_S = 5.0  # longer than a heartbeat lives: what waits in a pool is not ended by a blink
_LOAD_TIMEOUT_S = 60.0
_TEXT_WAIT_S = 1.0  # of a list of models, for what it tells of their tokenizers
# Tokenizers may drop blanks, or make one token of a word that they do not know.
_MIN_TOKEN_CHARS = 128
_RETRY_AFTER_S = 10
_MAX_NAMED = 8
_FORGOTTEN = Standing(ModelStatus.ABSENT)
# One that loads, or is started for requests, will serve as well as another.
_OFFER_ORDER = {
    ModelStatus.READY: 0,
    ModelStatus.LOADING: 1,
    ModelStatus.IDLE: 1,
    ModelStatus.PAUSED: 1,
    ModelStatus.FAILED: 2,
    ModelStatus.ABSENT: 2,
}

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ModelText:
    """How a model reads text: shared by all cards with the same tokenizer files."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    token_texts: TokenTexts
    facts: TokenizerFacts
    max_token_chars: int  # of the text that one token stands for, as far as anybody knows
    token_search: TokenSearch
    fill_in_middle: FillInMiddle | None = None  # None: its tokenizer has no marks for it


class NamedModel(NamedTuple):
    """What a name stands for: a model, or a LoRA adapter of one; and whether it is served."""

    card: ModelCard
    adapter: AdapterCard | None = None
    status: ModelStatus = ModelStatus.READY

    @property
    def name(self) -> str:
        return self.card.name if self.adapter is None else self.adapter.name


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model card and how to talk to the model."""

    card: ModelCard
    text: ModelText
    adapter: AdapterCard | None = None  # that was asked for, on top of the model
    limits: Limits = NO_LIMITS  # of its workers

    @property
    def name(self) -> str:
        """The name by which it was asked for."""
        return self.card.name if self.adapter is None else self.adapter.name

    @property
    def labels(self) -> tuple[str, ...]:
        """That it classifies by."""
        return () if self.card.classifier is None else self.card.classifier.labels

    def chat_template(self) -> ChatTemplate:
        """Raises InvalidRequest when the model has none."""
        if self.text.chat_template is None:
            raise InvalidRequest(
                f"The model '{self.name}' has no chat template; use /v1/completions.",
                param="model",
            )
        return self.text.chat_template

    def fill_in_middle(self, param: str = "suffix") -> FillInMiddle:
        """Raises InvalidRequest when the model fills no gaps."""
        if self.text.fill_in_middle is None:
            raise InvalidRequest(
                f"'{param}' is not for the model '{self.name}': its tokenizer has no tokens that "
                "mark what is before and behind a gap",
                param=param,
                code="unsupported_parameter",
            )
        return self.text.fill_in_middle


class ModelDirectory:
    """Model cards by name, read from KV every second while they are asked for, and when a name is
    not known.

    A card is listed once a worker has loaded the model, or an operator said so. Whether somebody
    serves it is judged by heartbeats; who is silent for a minute is gone.
    """

    def __init__(self, catalog: ModelCatalog, *, use_model_defaults: bool = True) -> None:
        self.use_model_defaults = use_model_defaults  # of generation_config.json, for sampling
        self._catalog = catalog
        self._cards: dict[str, ModelCard] = {}
        self._named: dict[str, NamedModel] = {}
        self._unlisted: dict[str, ModelCard] = {}
        self._standings: dict[str, Standing] = {}  # by pool, of all cards
        self._alive_at: dict[str, float] = {}  # by pool: when there was hope last
        self._texts: dict[str, asyncio.Task[ModelText]] = {}  # by tokenizer hash
        self._refreshed_at = float("-inf")
        self._refresh_lock = asyncio.Lock()
        self._pace = LookPace(REFRESH_INTERVAL_S, _IDLE_S)

    async def run(self) -> None:
        """Keep the cards fresh until cancelled; tokenizers are loaded before they are needed."""
        try:
            while True:
                await self._refresh_quietly()
                for card in self._cards.values():
                    self._load(card.tokenizer_hash)
                is_empty = not any(each.status.has_hope for each in self._named.values())
                if is_empty:
                    await asyncio.sleep(_EMPTY_INTERVAL_S)
                else:
                    await self._pace.wait()
        finally:
            for task in self._texts.values():
                task.cancel()

    async def refresh(self) -> None:
        """Read the cards now; a failure is told, and the next look is soon."""
        await self._refresh_quietly()

    @property
    def is_fresh(self) -> bool:
        """Whether the cards were read lately."""
        return asyncio.get_running_loop().time() - self._refreshed_at < _FRESH_S

    @property
    def nothing_served(self) -> str:
        """Why no request can be taken now; empty when one can."""
        self._pace.use()
        if any(self.refusal(card) is None for card in self._cards.values()):
            return ""
        words = [_unserved(card, self._standings[card.pool]) for card in self._cards.values()]
        for card in self._unlisted.values():
            standing = self._standings[card.pool]
            if standing.status.has_hope:
                words.append(_loading(card.name))
            elif standing.status is ModelStatus.FAILED:
                words.append(_unserved(card, standing))
        return " ".join(words) or "no model is served"

    def named(self) -> Sequence[NamedModel]:
        """All that can be asked for, those that are served first: models, then adapters."""
        self._pace.use()
        return tuple(self._named.values())

    async def await_texts(self) -> None:
        """Waits a moment for tokenizers that are on their way: mostly all are here."""
        tasks = [self._load(card.tokenizer_hash) for card in self._cards.values()]
        if missing := [task for task in tasks if not task.done()]:
            await asyncio.wait(missing, timeout=_TEXT_WAIT_S)

    def templates(self) -> dict[str, str | None]:
        """The chat templates of the models whose tokenizers are loaded, by the model's name."""
        texts = {
            card.name: task.result()
            for card in self._cards.values()
            if (task := self._texts.get(card.tokenizer_hash)) is not None
            and task.done()
            and not task.cancelled()
            and task.exception() is None
        }
        return {
            name: None if text.chat_template is None else text.chat_template.source
            for name, text in texts.items()
        }

    def refusal(self, card: ModelCard) -> ServiceUnavailable | None:
        """The error of a request for a model that nobody serves, nor is about to."""
        self._pace.use()
        standing = self._standings.get(card.pool)
        if standing is None or standing.status.has_hope:  # None: forgotten while it was read
            return None
        if standing.status is ModelStatus.ABSENT and self._silent_s(card.pool) < _ABSENCE_S:
            return None
        served = _listed([each.name for each in self._named.values() if each.status.has_hope])
        return ServiceUnavailable(
            f"{_unserved(card, standing)} {served}", _RETRY_AFTER_S, code="model_not_served"
        )

    def hopeless(self, pool: str) -> str:
        """Why what waits in this pool waits in vain; empty when it does not, or may not.

        A model that is only silent may come back, for those whose requests were accepted.
        """
        self._pace.use()
        if not self.is_fresh or self._silent_s(pool) < _HOPELESS_S:
            return ""
        standing = self._standings.get(pool, _FORGOTTEN)
        if standing.status is ModelStatus.FAILED:
            return f"The model's workers die before they are ready: {standing.failure}"
        is_listed = any(card.pool == pool for card in self._cards.values())
        return "" if is_listed else "The model was withdrawn: nobody serves it any more."

    def _silent_s(self, pool: str) -> float:
        now = asyncio.get_running_loop().time()
        return now - self._alive_at.setdefault(pool, now)

    async def find(self, name: str) -> NamedModel:
        """Raises ModelNotFound, or ServiceUnavailable when the cards cannot be read, or a worker
        is just loading it for the first time.
        """
        self._pace.use()
        if name not in self._named:
            await self._refresh_after_miss()
        found = self._named.get(name)
        if found is not None:
            return found
        if not self.is_fresh:
            raise ServiceUnavailable("The model cards cannot be read now.")
        coming = self._unlisted.get(name)
        if coming is not None and self._standings[coming.pool].status.has_hope:
            raise ServiceUnavailable(_loading(name), _RETRY_AFTER_S, code="model_loading")
        raise ModelNotFound(name, _listed([*self._named]))

    async def model(self, name: str) -> ServedModel:
        """Raises ModelNotFound, or ServiceUnavailable while the tokenizer cannot be fetched."""
        card, adapter, _ = await self.find(name)
        standing = self._standings.get(card.pool, _FORGOTTEN)
        text = await self.text(card.tokenizer_hash)
        return ServedModel(card, text, adapter, standing.limits)

    async def only_model(self) -> ServedModel:
        """The one that is served, whatever its adapters. Raises InvalidRequest."""
        if not self._cards:
            await self._refresh_after_miss()
        models = [each for each in self._named.values() if each.adapter is None]
        served = [each for each in models if each.status.has_hope] or models
        if len(served) != 1:
            raise InvalidRequest(
                f"'model' is required: {len(served)} models are served", param="model"
            )
        return await self.model(served[0].name)

    async def text(self, tokenizer_hash: str) -> ModelText:
        """The text of a model, even if it is not served any more.

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
            heartbeats = await self._catalog.heartbeats()
        except BrokerError as exc:
            log.debug("model_cards_not_read", error=str(exc))
            self._pace.note_failure()
            return
        is_blind = not self.is_fresh
        self._refreshed_at = asyncio.get_running_loop().time()
        if is_blind:  # while NATS was away all heartbeats may have expired
            self._alive_at = dict.fromkeys(self._alive_at, self._refreshed_at)
        self._judge(cards, heartbeats)
        known = {
            card.name: card
            for card in cards
            if card.is_announced or heartbeats.has_served(card.pool)
        }
        self._unlisted = {card.name: card for card in cards if card.name not in known}
        for name in known.keys() - self._cards.keys():
            log.info("model_found", model=name, pool=known[name].pool)
        self._cards = known
        self._named = self._ordered()

    def _judge(self, cards: Sequence[ModelCard], heartbeats: PoolHeartbeats) -> None:
        self._standings = {card.pool: heartbeats.standing(card) for card in cards}
        alive = [pool for pool, each in self._standings.items() if each.status.has_hope]
        self._alive_at |= dict.fromkeys(alive, self._refreshed_at)

    def _ordered(self) -> dict[str, NamedModel]:
        """A model's name hides an adapter's."""
        statuses = {pool: standing.status for pool, standing in self._standings.items()}
        cards = self._cards.values()
        models = [NamedModel(card, None, statuses[card.pool]) for card in cards]
        models += [
            NamedModel(card, adapter, statuses[card.pool])
            for card in cards
            for adapter in card.adapters
            if adapter.name not in self._cards
        ]
        models.sort(key=lambda each: _OFFER_ORDER[each.status])
        return {each.name: each for each in models}


def _unserved(card: ModelCard, standing: Standing) -> str:
    if standing.status is ModelStatus.FAILED:
        return f"The workers of '{card.name}' die before they are ready: {standing.failure}"
    return f"The model '{card.name}' is not served: no worker of it lives."


def _loading(name: str) -> str:
    return f"The model '{name}' is being loaded."


def _listed(names: Sequence[str]) -> str:
    """A sentence for people; a client asks /v1/models."""
    if not names:
        return "No model is served."
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"Served: {', '.join(names[:_MAX_NAMED])}{more}."


def _model_text(bundle: TokenizerBundle) -> ModelText:
    """Slow: off the event loop. Raises ConfigError."""
    tokenizer = bundle.tokenizer()
    facts = TokenizerFacts.of(bundle)
    source, special_tokens = facts.chat_template, facts.special_tokens
    template = None if source is None else ChatTemplate(source, special_tokens)
    longest = max(map(len, tokenizer.get_vocab()), default=0)  # of bytes, each is a character
    token_texts = TokenTexts(tokenizer)
    return ModelText(
        tokenizer,
        template,
        token_texts,
        facts,
        max(longest, _MIN_TOKEN_CHARS),
        TokenSearch(token_texts, tokenizer.get_vocab_size()),
        FillInMiddle.of(tokenizer),
    )
