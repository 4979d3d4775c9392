"""Videos in chats: what of them reaches the model, beside transformers' own functions, and what is
refused.
"""

from __future__ import annotations

import base64
import io
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image
from tokenizers import AddedToken

from frontend.audio.loader import AudioLoader
from frontend.images import fitting
from frontend.images.loader import ImageLoader, LoadedVideo
from frontend.images.source import VideoSource
from frontend.images.video import Asked, BadVideo, FrameList, MovingImage, _chosen
from frontend.jobs.job import Caller, Job, Prompt
from frontend.limits.work_limits import AudioLimits, ImageLimits, VideoLimits
from frontend.models.model_directory import ModelDirectory
from shared.checkpoint.tokenizer_bundle import TokenizerBundle
from shared.errors import RequestError
from shared.protocol.image_sizes import AreaSize, BadImageSize, PixelSize
from shared.protocol.sight_card import SightCard
from shared.protocol.video_card import VIDEO_LEVEL, VideoCard
from tests.frontend.directory import AllRequests, FakeCatalog
from tests.frontend.images.test_image_fetcher import fetcher, host
from tests.frontend.seeing_model import data_url, image_bytes, image_part, make_image, text_part
from tests.frontend.tiny_model import VOCAB_SIZE, make_bundle, make_card, make_tokenizer

WORDS = ("<image>", "<video>", "<begin>", "<end>")
IMAGE_ID, VIDEO_ID = VOCAB_SIZE, VOCAB_SIZE + 1
OF_TIMES = VideoCard(
    token_id=VIDEO_ID,
    moment_frames=2,
    cell=8,
    min_pixels=64,
    max_pixels=64 * 8,
    resample=3,
    rescale_factor=1 / 255,
    mean=(0.5,) * 3,
    std=(0.5,) * 3,
    fps=2.0,
    min_frames=4,
    max_frames=768,
    positions_per_s=2,
)
OF_STAMPS = replace(
    OF_TIMES, max_pixels=64 * 60, positions_per_s=0, mark="<video>", begin="<begin>", end="<end>"
)
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<begin><{{ part['type'] }}><end>"
    "{% endif %}{% endfor %}{% endfor %}"
)
FRAMES = [image_bytes(make_image(seed, 23, 40), "JPEG") for seed in range(5)]
ANY = VideoLimits(1, 10**8, 10**5, 10**8), ImageLimits(1, 10**6, 10**9, 10**6)


def listed(frames: Sequence[bytes] = FRAMES) -> str:
    return f"data:video/jpeg;base64,{','.join(base64.b64encode(each).decode() for each in frames)}"


def video_part(url: str | None = None, **options: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url or listed(), **options}}


def moving(kind: str = "gif", num: int = 6, ms: int = 250) -> str:
    first, *others = (make_image(seed, 24, 16) for seed in range(num))
    options = {"lossless": True} if kind == "webp" else {}
    data = image_bytes(
        first, kind.upper(), save_all=True, append_images=others, duration=ms, **options
    )
    return data_url(data, kind)


def directory(video: VideoCard | None) -> ModelDirectory:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in WORDS])
    files = make_bundle(TEMPLATE).files | {"tokenizer.json": tokenizer.to_str().encode()}
    bundle = TokenizerBundle(files)
    sight = SightCard(
        IMAGE_ID, AreaSize(8, 64, 1 << 16), 3, 1 / 255, (0.0,) * 3, (1.0,) * 3, True, video=video
    )
    card = make_card(bundle, vocab_size=VOCAB_SIZE + 4, own_sight=sight)
    return ModelDirectory(FakeCatalog(bundle, card))  # type: ignore[arg-type]


async def job_of(video: VideoCard | None, *parts: dict[str, Any], **fields: Any) -> Job:
    body = {"model": "tiny", "messages": [{"role": "user", "content": list(parts)}], **fields}
    return await AllRequests(directory(video)).chat.job(body, Caller())


async def prompt_of(video: VideoCard, *parts: dict[str, Any]) -> Prompt:
    return (await job_of(video, *parts)).prompts[0]


def ids(text: str) -> list[int]:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in WORDS])
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


async def test_moments_whose_positions_tell_times() -> None:
    job = await job_of(
        OF_TIMES,
        text_part("One:"),
        video_part(fps=1.5),
        text_part("two"),
        image_part(data_url(image_bytes(make_image()))),
    )
    (prompt,) = job.prompts
    assert job.needed_level == VIDEO_LEVEL
    num_cells = OF_TIMES.fit(PixelSize(40, 23), 5, 400)
    assert num_cells == (24, 16)
    start = len(ids("One:<begin>"))
    spans = prompt.images
    assert [(each.start, each.num_tokens) for each in spans[:3]] == [
        (start + 6 * idx, 6) for idx in range(3)
    ]
    # 2 positions a second, 2 frames a moment, 1.5 frames a second
    assert [(each.goes_on, each.time, each.num_frames) for each in spans[:3]] == [
        (False, 0, 2),
        (True, 2, 2),
        (True, 5, 2),
    ]
    assert (spans[3].num_frames, spans[3].goes_on) == (0, False)
    assert prompt.token_ids[start : start + 18] == [VIDEO_ID] * 18
    assert [len(each) for each in prompt.pixels[:3]] == [2 * 24 * 16 * 3] * 3
    assert prompt.pixels[2][:1152] == prompt.pixels[2][1152:], "the last frame fills the moment"
    faster = await prompt_of(OF_TIMES, text_part("One:"), video_part(fps=3))
    assert faster.pixels == prompt.pixels[:3]
    same = [a.digest == b.digest for a, b in zip(faster.images, spans, strict=False)]
    assert same == [True, False, False]


@pytest.mark.torch
async def test_moments_between_their_times_in_words() -> None:
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    prompt = await prompt_of(OF_STAMPS, text_part("One:"), video_part(fps=1.5), text_part("two"))
    calculate: Any = Qwen3VLProcessor._calculate_timestamps
    times = calculate(None, [*range(5)], 1.5, 2)
    cells = prompt.images[0].num_tokens
    spelled = "".join(f"<{each:.1f} seconds><begin>{'<video>' * cells}<end>" for each in times)
    assert prompt.token_ids == ids(f"One:<begin>{spelled}<end>two")
    assert [(each.num_frames, each.goes_on, each.time) for each in prompt.images] == [
        (2, False, 0)
    ] * 3
    for each in prompt.images:
        assert prompt.token_ids[each.start : each.start + cells] == [VIDEO_ID] * cells


@pytest.mark.torch
def test_sizes_and_frames_are_those_of_transformers() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as fit_one
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import (
        Qwen3VLVideoProcessor,
        smart_resize,
    )
    from transformers.video_utils import VideoMetadata

    for height, width, num in np.random.default_rng(1).integers(1, 90, (300, 3)).tolist():
        theirs = smart_resize(num, height, width, 2, 8, 64, 64 * 60) if num > 1 else None
        if theirs is None:
            with pytest.raises(BadImageSize, match="has 1 frames, the model reads 2"):
                OF_STAMPS.fit(PixelSize(height, width), num, 10**6)
        else:
            assert OF_STAMPS.fit(PixelSize(height, width), num, 10**6) == theirs
        assert OF_TIMES.fit(PixelSize(height, width), num, 10**6) == fit_one(
            height, width, 8, 64, 64 * 8
        )
        processor: Any = type("Values", (), {"min_frames": 4, "max_frames": 768, "fps": 2})
        metadata = VideoMetadata(total_num_frames=num, fps=width / 3)
        frames: Any = type("Frames", (), {"num_frames": num, "fps": width / 3, "chooses": True})
        for asked in ({}, {"num_frames": min(height, num)}, {"fps": height / 7}):
            sample: Any = Qwen3VLVideoProcessor.sample_frames
            expected = sample(processor, metadata, **asked).tolist()
            assert list(_chosen(frames, Asked(**asked), OF_STAMPS, ANY[0])) == expected


@pytest.mark.parametrize("kind", ["gif", "webp"])
async def test_moving_images_are_sampled(kind: str) -> None:
    """Six frames in 1.5 s: two a second, and four at least."""
    prompt = await prompt_of(OF_STAMPS, video_part(moving(kind)))
    assert len(prompt.images) == 2
    told = ids("".join(f"<{each} seconds>" for each in ("0.2", "1.1")))
    size = prompt.images[0].num_tokens
    assert len(prompt.token_ids) == len(told) + 2 * size + 6
    three = await prompt_of(OF_TIMES, video_part(moving(kind), num_frames=3))
    assert [each.time for each in three.images] == [0, 1]


def film_of(codec: str, pix_fmt: str = "yuv420p") -> bytes:
    """Twelve frames in half a second."""
    import av

    data = io.BytesIO()
    with av.open(data, "w", format="mp4") as output:
        stream: Any = output.add_stream(codec, rate=24)
        stream.width, stream.height, stream.pix_fmt = 32, 16, pix_fmt
        for idx in range(12):
            frame = av.VideoFrame.from_image(Image.new("RGB", (32, 16), (20 * idx, 0, 0)))
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return data.getvalue()


async def test_films(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four frames at least."""
    film = film_of("mpeg4")
    prompt = await prompt_of(OF_STAMPS, video_part(data_url(film, "mp4")))
    assert len(prompt.images) == 2
    means = [np.frombuffer(each, np.uint8).reshape(-1, 3)[:, 0].mean() for each in prompt.pixels]
    assert np.allclose(means, [40, 180], atol=9), "of frames 0 and 4, 7 and 11"
    for bad, why in (
        (film_of("mjpeg", "yuvj420p"), "is of the codec 'mjpeg', must be of one of av1, h264"),
        (film[:60], "cannot be decoded"),
        (film[:-900], "cannot be decoded|of the 4 f"),
    ):
        with pytest.raises(RequestError, match=why):
            await job_of(OF_STAMPS, video_part(data_url(bad, "mp4")))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(
        RequestError, match="reads lists of JPEGs and GIF, WEBP alone: its operator"
    ):
        await job_of(OF_STAMPS, video_part(data_url(film, "mp4")))


async def test_a_list_is_thinned_out_on_request() -> None:
    prompt = await prompt_of(OF_STAMPS, video_part(num_frames=2))
    assert len(prompt.images) == 1
    others: dict[str, Any]
    for others in (
        {"mm_processor_kwargs": {"num_frames": 2}},
        {"media_io_kwargs": {"video": {"num_frames": 2}}},
    ):
        assert (await job_of(OF_STAMPS, video_part(), **others)).prompts[0] == prompt
    with pytest.raises(RequestError, match="min_pixels"):
        await job_of(OF_STAMPS, video_part(), mm_processor_kwargs={"min_pixels": 4})
    assert ids("<1.0 seconds>") == prompt.token_ids[1 : 1 + len(ids("<1.0 seconds>"))]


BOMB = image_bytes(Image.new("RGB", (1100, 1100)), "JPEG")
SCANS = image_bytes(Image.new("L", (400, 400)), "JPEG", progressive=True)
LAST_SCAN = SCANS[SCANS.rfind(b"\xff\xc4") : -2]
GIF = image_bytes(Image.new("L", (900, 900)), "GIF")
GIF_FRAME = GIF[GIF.index(b",\0\0\0\0\x84\x03") :]
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no frame": ({"url": "data:video/jpeg;base64,"}, "is a video that has 0 frames"),
    "an empty one": ({"url": listed([FRAMES[0], b""])}, "has no JPEG in frame 1, or a damaged one"),
    "10,000": ({"url": listed([b"x"] * 10_000)}, "has 10000 frames, at most 40 (--max-video-fr"),
    "many bytes": ({"url": listed([bytes(9000)] * 20)}, "holds more than 100000 bytes"),
    "a large frame": ({"url": listed([bytes(20_001)])}, "holds 20001 bytes in frame 0, at most 20"),
    "no JPEG": ({"url": listed([FRAMES[0], image_bytes(make_image())])}, "has no JPEG in frame 1"),
    "a cut one": (
        {"url": listed([FRAMES[0][:700]] * 2)},
        "cannot be decoded in frame 0: image file",
    ),
    "no base64": ({"url": f"{listed()},?!"}, "is not base64 in frame 5: "),
    "sizes": (
        {"url": listed([FRAMES[0], image_bytes(make_image(), "JPEG")])},
        "has 30 x 20 pixels in frame 1, and 23 x 40 in frame 0",
    ),
    "a bomb": (
        {"url": listed([BOMB] * 2)},
        "has 1100 x 1100 pixels, at most 1000000 in all of a fram",
    ),
    "scans": (
        {"url": listed([SCANS, SCANS[:-2] + LAST_SCAN * 50 + SCANS[-2:]])},
        "is a JPEG of more than 50 scans in frame 1",
    ),
    "growing": (
        {"url": data_url(image_bytes(make_image(1, 1, 1), "GIF")[:-1] + GIF_FRAME, "gif")},
        "has 900 x 900 pixels in frame 1",
    ),
    "one alone": ({"url": listed(FRAMES[:1])}, "has 1 frames, the model reads 2"),
    "narrow": (
        {"url": listed([image_bytes(make_image(1, 1700, 8), "JPEG")] * 2)},
        "one side may be 200 times as long as the other",
    ),
    "a film": (
        {"url": "data:video/mp4;base64,AAAA"},
        "is neither a list of JPEGs ('data:video/jpeg",
    ),
    "a still": (
        {"url": data_url(FRAMES[0], "jpeg")},
        "nor one of GIF, WEBP, MP4, WebM, or damaged",
    ),
    "a rate": ({"fps": -1.0}, "Expected `float` >= 0.01"),
    "a number": ({"num_frames": 0}, "Expected `int` >= 1"),
    "two": ({}, ""),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_bad_videos_are_refused(name: str) -> None:
    options, why = HOSTILE[name]
    parts = [video_part(**options)]
    if name == "two":
        parts, why = parts * 2, "'messages[0].content[1]' is video 2 of 2, a request may have 1"
    with pytest.raises(RequestError) as refused:
        await job_of(OF_STAMPS, *parts)
    assert refused.value.status_code == 400
    assert why in str(refused.value)
    assert "messages[0]" in str(refused.value)


async def test_a_video_by_url_has_as_many_bytes_as_a_video() -> None:
    """More than an image may have."""
    served = await directory(OF_STAMPS).model("tiny")
    data = base64.b64decode(moving(num=40).partition(",")[2])
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(data)
    of_image = ImageLimits(1, len(data) - 1, 10**6, 900)
    async with host({"/a.gif": head + data}) as running:
        source = VideoSource(f"http://films.example:{running.port}/a.gif", "here")
        for max_bytes in (len(data), len(data) - 1):
            fetching, _ = fetcher("127.0.0.1")
            audio = AudioLoader(AudioLimits(1, 1.0, 1))
            loader = ImageLoader(of_image, VideoLimits(1, max_bytes, 40, 400), audio, fetching)
            if max_bytes == len(data):
                (video,) = await loader.load([source], served, "")
                assert isinstance(video, LoadedVideo)
            else:
                with pytest.raises(RequestError, match=f"URL holds more than {max_bytes} bytes"):
                    await loader.load([source], served, "")
            await loader.close()
    assert "video/*" in running.heads[0]


async def test_comments_that_slow_pillow_down_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """300,000 of them take two seconds of a processor; ten times as many, minutes."""
    monkeypatch.setattr(fitting, "MAX_CPU_S", 0.05)
    at = GIF.index(b",\0\0\0\0\x84\x03")
    data = GIF[:at] + b"!\xfe\1x\0" * 300_000 + GIF[at:]
    began = time.process_time()
    with pytest.raises(BadVideo, match=r"cannot be decoded: it takes more than 0\.05 s"):
        MovingImage(data, ANY[1])
    assert time.process_time() - began < 1


async def test_what_no_model_reads() -> None:
    with pytest.raises(RequestError, match="is a video, and the model 'tiny' takes no videos"):
        await job_of(None, video_part())
    with pytest.raises(RequestError, match="has 2 video tokens for 1 videos"):
        await job_of(OF_STAMPS, video_part(), text_part("<video>"))
    with pytest.raises(RequestError, match="has 2 video tokens for 1 videos"):
        await job_of(OF_TIMES, video_part(), text_part("<video>"))
    many = listed([image_bytes(make_image(1, 8, 8), "JPEG")] * 40)
    with pytest.raises(RequestError, match="has 40 frames, which are 500 tokens, at most 400"):
        await job_of(replace(OF_TIMES, min_pixels=64 * 24), video_part(many))


def test_nothing_is_decoded_before_it_is_chosen() -> None:
    frames = FrameList(listed([FRAMES[0], b"x", FRAMES[2]])[23:], None, *ANY)
    assert frames.size([0, 2]) == (40, 23)
    (first,) = frames.images([2])
    assert first.size == (23, 40)
