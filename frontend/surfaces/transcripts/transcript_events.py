"""The wire formats of /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.surfaces.transcripts.transcript_answer import (
    HeardText,
    HeardUsage,
    TranscriptDelta,
    TranscriptDone,
    TranscriptSegment,
)
from frontend.text.event_writer import encode_json
from frontend.text.text_stream import TextStream
from frontend.text.token_texts import TokenTexts
from shared.protocol.reply import Surface, TranscriptFormat
from shared.token_log.transcript import Segment, Transcript


class TranscriptEvents:
    """A request has one text. Streamed, an event has the segments that are complete: what a window
    has behind them is heard again, and may become other text.
    """

    def __init__(self, stream: TextStream, texts: TokenTexts) -> None:
        assert stream.reply.transcript is not None, "it asks for a transcript"
        self._stream = stream
        self._reply = stream.reply.transcript
        self._texts = texts
        self._transcript = Transcript(self._reply.rule)
        self._num_folded = 0  # tokens
        self._text = ""  # of all segments so far

    def opening(self) -> list[bytes]:
        return []

    def text(self, stream: TextStream, text: str) -> bytes:
        tokens = stream.emit_tokens()
        self._fold(tokens.start)  # what a client has that resumes
        delta = self._fold(tokens.stop)
        return encode_json(TranscriptDelta(delta=delta)) if delta else b""

    def finish(self, stream: TextStream) -> bytes:
        self._fold(len(stream.token_ids))
        return encode_json(TranscriptDone(text=self._text, usage=self._usage))

    def closing(self) -> list[bytes]:
        return []

    def whole(self, texts: Sequence[str]) -> bytes:
        self._fold(len(self._stream.token_ids))
        match self._reply.format:
            case TranscriptFormat.JSON:
                return encode_json(HeardText(text=self._text, usage=self._usage))
            case TranscriptFormat.TEXT:
                return f"{self._text}\n".encode()
            case TranscriptFormat.VERBOSE_JSON:
                return encode_json(self._verbose())
            case TranscriptFormat.SRT:
                cues = "\n".join(
                    f"{number}\n{_cue(each, ',', self._text_of(each))}"
                    for number, each in enumerate(self._spoken, start=1)
                )
                return cues.encode()
            case TranscriptFormat.VTT:
                parts = [_cue(each, ".", self._text_of(each)) for each in self._spoken]
                return "\n".join(["WEBVTT\n", *parts]).encode()

    def _fold(self, end: int) -> str:
        """The text that the tokens up to there add to what is known."""
        before, num_segments = len(self._text), len(self._transcript.segments)
        for token_id in self._stream.token_ids[self._num_folded : end]:
            self._transcript.add(token_id)
        self._num_folded = max(self._num_folded, end)
        new = "".join(map(self._bare_text, self._transcript.segments[num_segments:]))
        self._text += new if self._text else new.lstrip()
        return self._text[before:]

    @property
    def _usage(self) -> HeardUsage:
        return HeardUsage(seconds=self._reply.seconds)

    @property
    def _spoken(self) -> list[Segment]:
        """Those that say something."""
        return [each for each in self._transcript.segments if self._text_of(each)]

    def _verbose(self) -> HeardText:
        is_translation = self._stream.reply.surface is Surface.TRANSLATION
        language = self._reply.language
        for code, token_id in self._reply.languages.items():
            if token_id == self._transcript.language_id:
                language = code
        return HeardText(
            text=self._text,
            usage=self._usage,
            task="translate" if is_translation else "transcribe",
            language=language,
            duration=self._reply.seconds,
            segments=[
                TranscriptSegment(
                    id=idx,
                    seek=each.seek,
                    start=each.start_s,
                    end=each.end_s,
                    text=self._bare_text(each),
                    tokens=list(each.token_ids),
                    temperature=self._reply.temperature,
                )
                for idx, each in enumerate(self._spoken)
            ],
        )

    def _text_of(self, segment: Segment) -> str:
        return self._bare_text(segment).strip()

    def _bare_text(self, segment: Segment) -> str:
        data = b"".join(map(self._texts.visible_bytes_of, segment.token_ids))
        return data.decode(errors="replace")


def _cue(segment: Segment, mark: str, text: str) -> str:
    lines = text.replace("-->", "->")  # which ends no cue
    return f"{_clock(segment.start_s, mark)} --> {_clock(segment.end_s, mark)}\n{lines}\n"


def _clock(seconds: float, mark: str) -> str:
    """00:00:01,500."""
    whole_ms = round(seconds * 1000)
    whole_s, ms = divmod(whole_ms, 1000)
    return f"{whole_s // 3600:02d}:{whole_s // 60 % 60:02d}:{whole_s % 60:02d}{mark}{ms:03d}"
