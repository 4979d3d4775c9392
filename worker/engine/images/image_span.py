"""Where a step's tokens are those of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from worker.engine.request.req_image import ReqImage
from worker.engine.request.schedule_batch import ScheduleBatch


class ImageSpan(NamedTuple):
    """Tokens [first, end) of an image."""

    image: ReqImage
    first: int
    end: int
    start: int  # index of the first of them in the step


def image_spans(batch: ScheduleBatch) -> tuple[ImageSpan, ...]:
    """Of the chunks that have tokens of images."""
    spans: list[ImageSpan] = []
    shift = batch.num_plain  # decoding requests are past their prompts
    for entry in batch.others:
        for image in entry.req.images:
            start, end = max(entry.start, image.start), min(entry.end, image.end)
            if start < end:
                place = shift + start - entry.start
                spans.append(ImageSpan(image, start - image.start, end - image.start, place))
        shift += entry.num_tokens
    return tuple(spans)


def cut_spans(spans: Sequence[ImageSpan], begin: int, end: int) -> tuple[ImageSpan, ...]:
    """Of the step's tokens [begin, end) alone."""
    parts: list[ImageSpan] = []
    for image, first, last, start in spans:
        skipped = max(0, begin - start)
        num_tokens = min(last - first, end - start) - skipped
        if num_tokens > 0:
            first += skipped
            parts.append(ImageSpan(image, first, first + num_tokens, start + skipped - begin))
    return tuple(parts)
