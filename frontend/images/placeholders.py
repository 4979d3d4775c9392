"""The places of images among the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.images.loader import LoadedImage
from frontend.jobs.job import Prompt
from frontend.models.model_directory import ServedModel
from shared.errors import InvalidRequest
from shared.protocol.model_cards import VisionCard
from shared.protocol.request import ImageSpan


def expanded(
    token_ids: list[int], num_images: int, vision: VisionCard, param: str = "messages"
) -> list[int]:
    """The ids with as many tokens for each image as the model takes. Raises InvalidRequest."""
    num_marks = token_ids.count(vision.image_token_id)
    if num_marks != num_images:
        raise InvalidRequest(
            f"The prompt has {num_marks} image tokens for {num_images} images: texts must not "
            "hold the token that stands for an image, and the model's chat template must name "
            "each image once.",
            param=param,
        )
    whole: list[int] = []
    for token_id in token_ids:
        whole += [token_id] * (vision.num_tokens if token_id == vision.image_token_id else 1)
    return whole


def prompt_of(
    token_ids: list[int], images: Sequence[LoadedImage], model: ServedModel, param: str = "messages"
) -> Prompt:
    """The prompt of ids with one token for each image, in their order. Raises InvalidRequest."""
    vision = model.card.vision
    if vision is None:
        return Prompt(token_ids)
    spans: list[ImageSpan] = []
    marks = (idx for idx, each in enumerate(token_ids) if each == vision.image_token_id)
    whole = expanded(token_ids, len(images), vision, param)
    for num_before, (mark, image) in enumerate(zip(marks, images, strict=True)):
        start = mark + num_before * (vision.num_tokens - 1)
        spans.append(ImageSpan(start, vision.num_tokens, image.digest))
    return Prompt(whole, images=tuple(spans), pixels=tuple(image.pixels for image in images))
