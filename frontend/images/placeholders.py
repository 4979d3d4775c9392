"""The places of images among the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.images.loader import LoadedImage
from frontend.jobs.job import Prompt
from frontend.models.model_directory import ServedModel
from shared.errors import InvalidRequest
from shared.protocol.request import ImageSpan


def prompt_of(
    token_ids: list[int], images: Sequence[LoadedImage], model: ServedModel, param: str = "messages"
) -> Prompt:
    """The prompt of ids with one token for each image, in their order. Raises InvalidRequest."""
    sight = model.card.sight
    if sight is None:
        return Prompt(token_ids)
    _check_marks(token_ids.count(sight.image_token_id), len(images), param)
    waiting = iter(images)
    whole: list[int] = []
    spans: list[ImageSpan] = []
    for token_id in token_ids:
        if token_id != sight.image_token_id:
            whole.append(token_id)
            continue
        image = next(waiting)
        image_ids = sight.image_ids(image.size)
        spans.append(ImageSpan(len(whole), len(image_ids), image.digest, *image.size))
        whole += image_ids
    return Prompt(
        whole,
        images=tuple(spans),
        pixels=tuple(image.pixels for image in images),
    )


def _check_marks(num_marks: int, num_images: int, param: str) -> None:
    """Raises InvalidRequest."""
    if num_marks != num_images:
        raise InvalidRequest(
            f"The prompt has {num_marks} image tokens for {num_images} images: texts must not "
            "hold the token that stands for an image, and the model's chat template must name "
            "each image once.",
            param=param,
        )
