"""Models as OpenAI shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from msgspec import UNSET, UnsetType

from frontend.fields.sampling_fields import sampling_defaults
from frontend.models.model_directory import ModelDirectory, NamedModel
from frontend.surfaces.tools.answer_styles import AnswerStyles
from frontend.text.event_writer import encode_json
from frontend.text.wire_struct import Count, WireStruct
from shared.catalog.model_status import ModelStatus
from shared.protocol.model_cards import ModelCard
from shared.protocol.reply import ScoreMethod
from shared.protocol.role_cards import ChosenParser, ChosenParsers

Task = Literal["generate", "embed", "score", "classify", "transcribe"]


class SamplingDefaults(WireStruct, frozen=True, kw_only=True):
    """How a model samples when a request says nothing."""

    temperature: float
    top_p: float
    top_k: float
    min_p: float
    repetition_penalty: float


class Parser(WireStruct, frozen=True, kw_only=True):
    """What tells tool calls, or reasoning, from content."""

    name: str | None  # as --tool-parser and --reasoning-parser have it
    because: str

    @classmethod
    def of(cls, chosen: ChosenParser) -> Self:
        return cls(name=chosen.name or None, because=chosen.because)


class Model(WireStruct, frozen=True, kw_only=True):
    """OpenAI's model object, with the context length, root and parent as vLLM names them, whether
    it is served, and how it samples.
    """

    id: str
    object: Literal["model"]
    created: Count  # unix seconds
    owned_by: str
    root: str
    parent: str | None  # of a LoRA adapter
    max_model_len: Count
    status: ModelStatus
    tasks: list[Task]
    sampling_defaults: SamplingDefaults
    score_method: ScoreMethod | UnsetType = UNSET
    quantization: str | UnsetType = UNSET  # in what its weights are stored, where in few bits
    num_weight_bytes: Count | UnsetType = UNSET  # on disk
    kv_dtype: str | UnsetType = UNSET  # of keys and values, where in fewer bits than the model's
    activations: str | UnsetType = UNSET  # the same of what CPUs multiply weights with
    tool_parser: Parser | UnsetType = UNSET  # of chats, once the frontend has read the tokenizer
    reasoning_parser: Parser | UnsetType = UNSET


class ModelList(WireStruct, frozen=True, kw_only=True):
    """All that can be asked for."""

    object: Literal["list"]
    data: list[Model]


class ModelListing:
    """The models, as a frontend with these parsers sees them."""

    def __init__(self, models: ModelDirectory, styles: AnswerStyles) -> None:
        self._models = models
        self._styles = styles

    async def all(self) -> bytes:
        """OpenAI's list of models."""
        await self._models.await_texts()
        parsers = self.parsers()
        data = [self._object(each, parsers) for each in self._models.named()]
        return encode_json(ModelList(object="list", data=data))

    async def one(self, name: str) -> bytes:
        """Raises ModelNotFound or ServiceUnavailable."""
        model = await self._models.find(name)
        await self._models.await_texts()
        return encode_json(self._object(model, self.parsers()))

    def parsers(self) -> dict[str, ChosenParsers]:
        """The parsers by model, of those whose tokenizers have been read."""
        return {
            name: self._styles.chosen(template)
            for name, template in self._models.templates().items()
        }

    def _object(self, model: NamedModel, parsers: Mapping[str, ChosenParsers]) -> Model:
        chosen = parsers.get(model.card.name) if model.card.can_generate else None
        return model_object(model, chosen, use_model_defaults=self._models.use_model_defaults)


def model_object(
    model: NamedModel, chosen: ChosenParsers | None, *, use_model_defaults: bool
) -> Model:
    """One of them. `chosen`: None where that is not known, or nothing is generated."""
    card, adapter, status = model
    defaults = sampling_defaults(card, use_model_defaults=use_model_defaults)
    return Model(
        id=model.name,
        object="model",
        created=card.created if adapter is None else adapter.created,
        owned_by="jetflock",
        root=card.name if adapter is None else adapter.path,
        parent=None if adapter is None else card.name,
        max_model_len=card.max_context_len,
        status=status,
        tasks=_tasks(card),
        sampling_defaults=SamplingDefaults(**defaults),
        score_method=UNSET if card.score is None else card.score.method,
        quantization=card.stored_format or UNSET,
        num_weight_bytes=card.num_weight_bytes or UNSET,
        kv_dtype=card.kv_dtype or UNSET,
        activations=card.activations or UNSET,
        tool_parser=UNSET if chosen is None else Parser.of(chosen.tools),
        reasoning_parser=UNSET if chosen is None else Parser.of(chosen.reasoning),
    )


def _tasks(card: ModelCard) -> list[Task]:
    can: dict[Task, bool] = {
        "generate": card.can_generate,
        "embed": card.embedding is not None,
        "score": card.score is not None,
        "classify": card.classifier is not None,
        "transcribe": card.hearing is not None,
    }
    return [task for task, is_possible in can.items() if is_possible]
