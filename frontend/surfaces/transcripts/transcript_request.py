"""Requests for transcripts: a file of audio, and how it is to be told."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from frontend.audio.loader import AudioLoader, LoadedAudio
from frontend.fields.field_ranges import RANGES
from frontend.fields.logprob_fields import LogprobOptions
from frontend.fields.request_body import IGNORED, BodyReader, Refused, non_empty, required_model
from frontend.fields.sampling_fields import SamplingFields, resolve_sampling
from frontend.jobs.job import Caller, Job, Prompt
from frontend.jobs.prompt_encoder import PromptEncoder
from frontend.models.model_directory import ModelDirectory, ServedModel
from shared.errors import InvalidRequest, UnsupportedParameter
from shared.protocol.hearing_card import WINDOW_FRAMES, HearingCard, TranscriptRule
from shared.protocol.reply import Surface, TranscriptFormat, TranscriptReply
from shared.protocol.request import PromptAudio


class TranscriptBody(msgspec.Struct, omit_defaults=True):
    """The fields that have an effect; None means default. Of HTTP they are those of a form."""

    model: str | None = None
    file: str | None = None
    language: str | None = None
    prompt: str | None = None
    response_format: TranscriptFormat | None = None
    temperature: float | None = None
    timestamp_granularities: list[Literal["segment", "word"]] | None = None
    stream: bool | None = None
    seed: int | None = None


REFUSED: Refused = {"include": non_empty, "hotwords": non_empty}
IGNORED_HERE = IGNORED | {"chunking_strategy"}


class TranscriptRequests:
    """Turns bodies into jobs."""

    def __init__(
        self, models: ModelDirectory, encoder: PromptEncoder, audio: AudioLoader, surface: Surface
    ) -> None:
        self._models = models
        self._encoder = encoder
        self._audio = audio
        self._surface = surface
        self._reader = BodyReader(TranscriptBody, REFUSED, IGNORED_HERE)

    async def job(self, raw: dict[str, Any], caller: Caller) -> Job:
        """Raises RequestError."""
        body = self._reader.read(raw, caller.unknown)
        told = body.response_format or TranscriptFormat.JSON
        _check(body, told)
        model = await self._models.model(required_model(body.model))
        card = model.card.hearing
        if card is None:
            raise InvalidRequest(f"The model '{model.name}' takes no audio.", param="model")
        translates = self._surface is Surface.TRANSLATION
        language = _language(body, card, model, translates=translates)
        text_ids = await self._text_ids(body, card, model, caller)
        prompt_ids = text_ids + card.task_ids(language, translates=translates)
        audio = await self._audio.load(body.file, card, caller)
        rule = TranscriptRule.of(card, prompt_ids, audio.num_frames)
        prompt = Prompt(
            prompt_ids,
            pixels=(audio.frames,),
            audio=PromptAudio(audio.num_frames, audio.digest),
        )
        sampling = resolve_sampling(
            SamplingFields(
                temperature=body.temperature or 0.0, seed=body.seed, skip_special_tokens=False
            ),
            model.card,
            default_max_tokens=_max_tokens(audio, card),
            prompt_param="prompt",
            use_model_defaults=False,
            tokenizer=model.text.tokenizer,
            logprobs=LogprobOptions(),
        )
        return Job(
            surface=self._surface,
            model=model,
            prompts=(prompt,),
            sampling=sampling,
            stream=bool(body.stream),
            transcript=TranscriptReply(
                told,
                rule,
                audio.seconds,
                sampling.params.temperature,
                language or ("" if card.languages else "en"),
                card.languages if rule.detects_language else {},
            ),
        )

    async def _text_ids(
        self, body: TranscriptBody, card: HearingCard, model: ServedModel, caller: Caller
    ) -> list[int]:
        """What stands before the task: the end of the client's prompt. Raises InvalidRequest."""
        text = (body.prompt or "").strip()
        if not text:
            return []
        if card.previous_id is None:
            raise UnsupportedParameter(
                "prompt", f"is given, and the model '{model.name}' has no token for one"
            )
        ids = await self._encoder.encode(
            caller, model, f" {text}", "prompt", add_special_tokens=False, limit=1 << 20
        )
        if any(each >= card.end_id for each in ids):
            raise InvalidRequest("'prompt' holds a special token", param="prompt")
        return [card.previous_id, *ids[-(card.max_context_len // 2 - 1) :]]


def _check(body: TranscriptBody, told: TranscriptFormat) -> None:
    """Raises InvalidRequest."""
    for name in ("temperature", "seed"):
        if (value := getattr(body, name)) is not None:
            RANGES[name].check(name, value)
    if body.stream and told not in (TranscriptFormat.JSON, TranscriptFormat.TEXT):
        raise UnsupportedParameter(
            "response_format", f"is {told.value!r}, and 'stream' is true: its events are JSON"
        )
    if "word" in (body.timestamp_granularities or ()):
        raise UnsupportedParameter(
            "timestamp_granularities", "holds 'word': the times of segments alone are known"
        )
    if body.timestamp_granularities and told is not TranscriptFormat.VERBOSE_JSON:
        raise InvalidRequest(
            f"'timestamp_granularities' is given, and 'response_format' is {told.value!r}, must be "
            "'verbose_json'",
            param="timestamp_granularities",
        )


def _language(
    body: TranscriptBody, card: HearingCard, model: ServedModel, *, translates: bool
) -> str:
    """Its code; "": it is to be found out, or there is one alone. Raises InvalidRequest."""
    if translates and not card.languages:
        raise InvalidRequest(
            f"The model '{model.name}' knows English alone, and translates nothing.", param="model"
        )
    if not body.language or (not card.languages and body.language == "en"):
        return ""
    if body.language not in card.languages:
        known = ", ".join(sorted(card.languages)) or "en"
        raise InvalidRequest(
            f"'language' is {body.language[:40]!r}, '{model.name}' knows {known}", param="language"
        )
    return body.language


def _max_tokens(audio: LoadedAudio, card: HearingCard) -> int:
    """More than twice what it may say of each window: an end for one that hears itself again."""
    return 2 * card.max_context_len * (audio.num_frames // WINDOW_FRAMES + 2)
