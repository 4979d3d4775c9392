"""What /v1/audio/transcriptions and /v1/audio/translations answer."""

from __future__ import annotations

from typing import Literal

import msgspec

from frontend.text.wire_struct import Amount, Count, TypedStruct, WireStruct


class HeardUsage(TypedStruct, frozen=True, kw_only=True, tag="duration"):
    """What was heard."""

    seconds: Amount


class TranscriptSegment(WireStruct, frozen=True, kw_only=True):
    """A piece of text, and when it is heard, in seconds."""

    id: Count
    seek: Count
    start: Amount
    end: Amount
    text: str
    tokens: list[Count]
    temperature: Amount


class HeardText(WireStruct, frozen=True, kw_only=True):
    """A transcript; what follows its text is told in verbose_json."""

    text: str
    usage: HeardUsage
    task: Literal["transcribe", "translate"] | msgspec.UnsetType = msgspec.UNSET
    language: str | msgspec.UnsetType = msgspec.UNSET
    duration: Amount | msgspec.UnsetType = msgspec.UNSET
    segments: list[TranscriptSegment] | msgspec.UnsetType = msgspec.UNSET


class TranscriptDelta(TypedStruct, frozen=True, kw_only=True, tag="transcript.text.delta"):
    """Segments that are complete."""

    delta: str


class TranscriptDone(TypedStruct, frozen=True, kw_only=True, tag="transcript.text.done"):
    """The end of a stream."""

    text: str
    usage: HeardUsage
