"""The places of images, videos and audio among the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frontend.images.loader import Loaded, LoadedAudio, LoadedImage, LoadedVideo
from frontend.jobs.job import Prompt
from frontend.models.model_directory import ServedModel
from shared.errors import InvalidRequest
from shared.protocol.model_cards import ModelCard
from shared.protocol.request import ImageSpan

_SOME = {"image": "images", "video": "videos", "audio": "files of audio"}


def with_stamps(
    text: str, loaded: Sequence[Loaded], model: ServedModel, param: str = "messages"
) -> str:
    """The rendered chat with a token for each moment of a video, where the model reads their times
    between them. Raises InvalidRequest.
    """
    video = None if model.card.sight is None else model.card.sight.video
    if video is None or not video.has_stamps:
        return text
    videos = _videos(loaded)
    first, *others = text.split(video.mark)
    _check_marks(len(others), len(videos), "video", param)
    moment = f"{video.begin}{video.mark}{video.end}"
    spelled = ("".join(f"{stamp}{moment}" for stamp in each.stamps) for each in videos)
    return first + "".join(f"{each}{other}" for each, other in zip(spelled, others, strict=True))


def prompt_of(
    token_ids: list[int], loaded: Sequence[Loaded], model: ServedModel, param: str = "messages"
) -> Prompt:
    """The prompt of ids with one token for each image, each audio and each video, or each moment of
    those `with_stamps`, in their order. Raises InvalidRequest.
    """
    sight, sound = model.card.sight, model.card.sound
    waiting: dict[int, Iterator[tuple[LoadedImage, ...]]] = {}

    def expect(token_id: int, places: Sequence[tuple[LoadedImage, ...]], kind: str) -> None:
        _check_marks(token_ids.count(token_id), len(places), kind, param)
        waiting[token_id] = iter(places)

    if sight is not None:
        images = [(each,) for each in loaded if isinstance(each, LoadedImage)]
        expect(sight.image_token_id, images, "image")
    if sight is not None and sight.video is not None:
        places = [each.moments for each in _videos(loaded)]
        if sight.video.has_stamps:
            places = [(moment,) for moments in places for moment in moments]
        expect(sight.video.token_id, places, "video")
    if sound is not None:
        heard = [each.windows for each in loaded if isinstance(each, LoadedAudio)]
        expect(sound.token_id, heard, "audio")
    if not loaded:
        return Prompt(token_ids)
    whole: list[int] = []
    spans: list[ImageSpan] = []
    pixels: list[bytes] = []
    for token_id in token_ids:
        if token_id not in waiting:
            whole.append(token_id)
            continue
        for image in next(waiting[token_id]):
            ids = _ids(image, model.card)
            spans.append(
                ImageSpan(
                    len(whole),
                    len(ids),
                    image.digest,
                    *image.size,
                    num_frames=image.num_frames,
                    goes_on=image.goes_on,
                    time=image.time,
                    num_sound_frames=image.num_sound_frames,
                )
            )
            pixels.append(image.pixels)
            whole += ids
    return Prompt(whole, images=tuple(spans), pixels=tuple(pixels))


def _ids(image: LoadedImage, card: ModelCard) -> list[int]:
    if image.num_sound_frames:
        assert card.sound is not None, "it has been loaded"
        return [card.sound.token_id] * card.sound.num_tokens(image.num_sound_frames)
    sight = card.sight
    assert sight is not None, "it has been loaded"
    if not image.num_frames or sight.video is None:
        return sight.image_ids(image.size)
    grid = sight.video.grid(image.size)
    assert grid is not None, "it has been fitted"
    return [sight.video.token_id] * grid.num_features


def _videos(loaded: Sequence[Loaded]) -> list[LoadedVideo]:
    return [each for each in loaded if isinstance(each, LoadedVideo)]


def _check_marks(num_marks: int, num_given: int, kind: str, param: str) -> None:
    """Raises InvalidRequest."""
    if num_marks != num_given:
        raise InvalidRequest(
            f"The prompt has {num_marks} {kind} tokens for {num_given} {_SOME[kind]}: texts must "
            "not hold the token that stands for one, and the model's chat template must name each "
            f"{kind} once.",
            param=param,
        )
