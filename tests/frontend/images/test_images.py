"""Images in chats: what of them reaches the model, and what is refused."""

from __future__ import annotations

import asyncio
import io
import struct
import warnings
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from frontend.images.fitting import BadImage
from frontend.images.loader import LoadedImage, read_image
from frontend.jobs.job import Caller, Job
from frontend.models.message_parts import Seen, joined, with_parts
from frontend.models.model_directory import ModelDirectory
from frontend.surfaces.anthropic.conversation import Turn, conversation_of
from frontend.surfaces.chat.chat_request import ChatRequests
from shared.catalog.model_status import Limits, PoolHeartbeats
from shared.errors import RequestError
from shared.protocol.image_sizes import AreaSize, PixelSize
from shared.protocol.model_cards import VisionCard
from shared.protocol.prompt_object import prompt_data
from shared.protocol.request import ImageSpan
from shared.protocol.sight_card import SightCard
from shared.protocol.token_ids import unpack_token_ids
from tests.frontend.conftest import Stack
from tests.frontend.directory import AllRequests, FakeCatalog, make_directory
from tests.frontend.inference.test_accept import until_object_is_gone
from tests.frontend.seeing_model import (
    IMAGE_TOKEN_ID,
    NUM_TOKENS,
    SIZE,
    VISION,
    data_url,
    image_bytes,
    image_part,
    make_image,
    make_seeing_bundle,
    make_seeing_card,
    text_part,
)
from tests.frontend.tiny_model import make_tokenizer, register

PNG = image_bytes(make_image())
PIXELS = PixelSize(SIZE, SIZE)
LARGE = SightCard(IMAGE_TOKEN_ID, AreaSize(8, 64, 1 << 20), 3, 1 / 255, (0.0,) * 3, (1.0,) * 3)
STRETCHED = VisionCard(IMAGE_TOKEN_ID, NUM_TOKENS, 20, 28, None, 2, 1 / 255, (0.0,) * 3, (1.0,) * 3)


def expected_pixels(image: Image.Image, vision: VisionCard) -> bytes:
    """By transformers' own image processors."""
    from transformers.image_utils import load_image
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

    size = {"height": vision.height, "width": vision.width}
    is_cut = vision.shortest_edge is not None
    processor = LlavaImageProcessorPil(
        size={"shortest_edge": vision.shortest_edge} if is_cut else size,
        do_center_crop=is_cut,
        crop_size=size,
        resample=vision.resample,
        do_rescale=False,
        do_normalize=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow: transparent palettes
        pixels = processor(load_image(image), return_tensors="np")["pixel_values"][0]
    return bytes(pixels.transpose(1, 2, 0).astype(np.uint8).tobytes())


@pytest.mark.torch
@pytest.mark.parametrize("vision", [VISION, STRETCHED], ids=["cut", "stretched"])
@pytest.mark.parametrize("size", [(24, 24), (30, 20), (20, 31), (7, 100), (333, 57), (1, 1)])
def test_pixels_are_those_of_transformers(size: tuple[int, int], vision: VisionCard) -> None:
    image = make_image(1, *size)
    pixels = pixels_of(image_bytes(image), vision, 1_000_000)
    assert pixels == expected_pixels(image, vision)


def pixels_of(data: bytes, vision: VisionCard = VISION, max_pixels: int = 10_000) -> bytes:
    return read_image(data, vision.sight, max_pixels, max_features=100).pixels


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    return exif.tobytes()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        ("RGBA", "PNG", {}),
        ("P", "PNG", {}),
        ("L", "PNG", {}),
        ("1", "PNG", {}),
        ("I;16", "PNG", {}),
        (
            "RGB",
            "JPEG",
            {"exif": turned()},
        ),
        ("CMYK", "JPEG", {}),
        ("RGBA", "WEBP", {"lossless": True}),
        ("P", "GIF", {"save_all": True, "append_images": [make_image(9)]}),
    ],
)
def test_formats(mode: str, kind: str, options: dict[str, Any]) -> None:
    """Turned upright, the first frame, without transparency."""
    image = make_image(2, mode="L").convert(mode) if mode == "I;16" else make_image(2, mode=mode)
    data = image_bytes(image, kind, **options)
    assert pixels_of(data) == expected_pixels(Image.open(io.BytesIO(data)), VISION)


def png_of(width: int, height: int) -> bytes:
    """A header that promises so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is none of PNG, JPEG, WEBP, GIF"),
        (b"hello", "is none of PNG, JPEG, WEBP, GIF"),
        (image_bytes(make_image(), "BMP"), "is none of"),
        (image_bytes(make_image(), "TIFF"), "is none of"),
        (PNG[:400], "cannot be decoded: "),
        (png_of(1001, 1000), "has 1001 x 1000 pixels, at most 1000000 in all"),
        (png_of(9_999, 9_999), "cannot be decoded: .*decompression bomb"),
        (png_of(50_000, 50_000), "cannot be decoded: .*decompression bomb"),
        (image_bytes(make_image(1, 2, 5000)), "has 24 x 60000 pixels"),
    ],
)
def test_bytes_that_are_no_image_or_too_much_of_one(data: bytes, sentence: str) -> None:
    with pytest.raises(BadImage, match=sentence):
        pixels_of(data, max_pixels=1_000_000)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(st.data())
def test_damage_gives_pixels_or_a_refusal(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF"]))
    whole = bytearray(image_bytes(make_image(3), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        pixels = pixels_of(bytes(whole), max_pixels=100_000)
    except BadImage:
        return
    assert len(pixels) == 3 * SIZE * SIZE


AREA = SightCard(IMAGE_TOKEN_ID, AreaSize(8, 64, 64 * 40), 3, 1 / 255, (0.0,) * 3, (1.0,) * 3, True)


@pytest.mark.torch
@pytest.mark.parametrize(
    "size", [(24, 24), (30, 20), (7, 100), (333, 57), (1, 1), (20, 36), (12, 2400)]
)
def test_sizes_and_pixels_of_their_own_are_those_of_transformers(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        patch_size=4, min_pixels=64, max_pixels=64 * 40, do_rescale=False, do_normalize=False
    )
    image = make_image(1, *size)
    theirs = processor([image], return_tensors="np")
    ours = read_image(image_bytes(image), AREA, 1_000_000, max_features=1000)
    _, rows, cols = theirs["image_grid_thw"][0]
    assert ours.size == (4 * rows, 4 * cols)
    pixels = np.frombuffer(ours.pixels, np.uint8).reshape(rows // 2, 2, 4, cols // 2, 2, 4, 3)
    patches = pixels.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * cols, 3, 1, 16)
    expected = theirs["pixel_values"].reshape(rows * cols, 3, 2, 16)
    assert np.array_equal(patches.repeat(2, axis=2), expected.astype(np.uint8))


def test_an_image_of_its_own_size_has_bounds() -> None:
    long = image_bytes(make_image(1, 10, 2010))
    with pytest.raises(BadImage, match="10 x 2010 pixels: one side may be 200 times as long"):
        read_image(long, AREA, 1_000_000, max_features=1000)
    wide = image_bytes(make_image(1, 400, 300))
    for max_features, cells in ((1000, (5, 7)), (12, (3, 4)), (1, (1, 1))):
        image = read_image(wide, AREA, 1_000_000, max_features)
        assert image.size == (8 * cells[0], 8 * cells[1])
    assert read_image(wide, AREA, 120_000, 12).digest != read_image(wide, AREA, 120_000, 9).digest


async def test_a_mark_of_the_template_becomes_the_text_of_an_image() -> None:
    """As Gemma's: what is around the image's token is words like others."""
    sight = msgspec.structs.replace(
        VISION.sight, mark_text="<image>", image_text="\n\nsee: <image> that\n\n"
    )
    job = await job_of(text_part("a"), image_part(data_url(PNG)), vision=None, own_sight=sight)
    (prompt,) = job.prompts
    begin, end = ids("<|im_start|>user\na\n\nsee: "), ids(" that\n\n<|im_end|>\n")
    assert prompt.token_ids[: len(begin)] == begin
    after = len(begin) + NUM_TOKENS
    assert prompt.token_ids[len(begin) : after] == [IMAGE_TOKEN_ID] * NUM_TOKENS
    assert prompt.token_ids[after : after + len(end)] == end


async def test_images_of_their_own_sizes_in_a_chat() -> None:
    """Each as many tokens as it has cells, and of low detail fewer."""
    small = data_url(image_bytes(make_image(1, 20, 36)))
    large = data_url(image_bytes(Image.new("RGB", (800, 800))))
    parts = [text_part("a"), image_part(small), text_part("b")]
    job = await job_of(*parts, image_part(large), vision=None, own_sight=LARGE)
    low = await job_of(*parts, image_part(large, detail="low"), vision=None, own_sight=LARGE)
    (prompt,), (lower,) = job.prompts, low.prompts
    first, second = prompt.images
    assert (first.num_tokens, first.height, first.width) == (8, 32, 16)
    assert (second.num_tokens, second.height, second.width) == (900, 240, 240)
    assert (lower.images[0], lower.images[1].num_tokens) == (first, 256)
    begin, middle = ids("<|im_start|>user\na"), ids("b")
    assert prompt.token_ids[: len(begin) + 9] == begin + [IMAGE_TOKEN_ID] * 8 + middle
    assert second.start == len(begin) + 8 + len(middle)
    assert prompt.token_ids.count(IMAGE_TOKEN_ID) == 908
    assert [len(each) for each in prompt.pixels] == [3 * 32 * 16, 3 * 240 * 240]
    assert (job.needed_level, (await job_of(image_part(data_url(PNG)))).needed_level) == (3, 1)


def make_chats(**changes: Any) -> ChatRequests:
    bundle = make_seeing_bundle()
    directory = ModelDirectory(FakeCatalog(bundle, make_seeing_card(bundle, **changes)))  # type: ignore[arg-type]
    return AllRequests(directory).chat


async def job_of(*content: Any, **fields: Any) -> Job:
    changes = {name: fields.pop(name) for name in ("vision", "own_sight") if name in fields}
    messages = [{"role": "user", "content": list(content)}]
    body = {"model": "tiny", "messages": messages, **fields}
    return await make_chats(**changes).job(body, Caller())


def ids(text: str) -> list[int]:
    token_ids: list[int] = make_tokenizer().encode(text, add_special_tokens=False).ids
    return token_ids


async def test_an_image_is_as_many_tokens_as_the_model_takes() -> None:
    other = image_bytes(make_image(5))
    job = await job_of(
        text_part("Look: "), image_part(data_url(PNG)), text_part(" and "),
        image_part(data_url(other), detail="high"), text_part("?"), max_tokens=5,
    )  # fmt: skip
    (prompt,) = job.prompts
    image = [IMAGE_TOKEN_ID] * NUM_TOKENS
    begin = ids("<|im_start|>user\nLook: ")
    middle = ids(" and ")
    end = ids("?<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.token_ids == begin + image + middle + image + end
    pixels = tuple(pixels_of(data) for data in (PNG, other))
    assert prompt.pixels == pixels
    second = len(begin) + NUM_TOKENS + len(middle)
    assert prompt.images == (
        ImageSpan(len(begin), NUM_TOKENS, LoadedImage.of(pixels[0], PIXELS).digest, *PIXELS),
        ImageSpan(second, NUM_TOKENS, LoadedImage.of(pixels[1], PIXELS).digest, *PIXELS),
    )


async def test_texts_reach_a_template_of_parts() -> None:
    chats = make_chats()
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [text_part("a"), text_part("b")]},
        {"role": "assistant", "content": "So"},
    ]
    body = {"model": "tiny", "messages": messages, "continue_final_message": True}
    prompt = (await chats.job(body, Caller())).prompts[0]
    assert prompt.token_ids == ids(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\na\nb<|im_end|>\n"
        "<|im_start|>assistant\nSo"
    )
    assert prompt.images == ()


@pytest.mark.parametrize(
    ("part", "fields", "sentence"),
    [
        (image_part("ftp://x/y.png"), {}, "whose URL must begin with https://"),
        (image_part("https://127.0.0.1/x.png"), {}, "an address that is not public"),
        (image_part("data:image/png;base64,@@@"), {}, "whose URL is not base64"),
        (image_part("data:image/png"), {}, "whose URL has no comma"),
        (image_part(data_url(bytes(20_001))), {}, "whose URL holds 20001 bytes, at most 20000"),
        (image_part("data:," + "x" * 70_000), {}, "whose URL holds more than 20000 bytes"),
        (image_part(data_url(b"hello")), {}, "is an image that is none of PNG"),
    ],
)
async def test_a_wrong_image_is_named(
    part: dict[str, Any], fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RequestError) as raised:
        await job_of(text_part("x"), image_part(data_url(PNG)), part, **fields)
    error = raised.value
    assert error.param == "messages[0].content[2]"
    assert str(error).startswith("'messages[0].content[2]' ")
    assert sentence in str(error)
    assert (error.status_code, error.code) == (400, "invalid_image")


@pytest.mark.parametrize(
    ("part", "place", "code"),
    [
        (image_part(data_url(PNG), detail="most"), "image_url.detail", "invalid_value"),
        ({"type": "image_url", "image_url": {}}, "image_url.url", "missing_field"),
        ({"type": "image_url"}, "image_url", "missing_field"),
        ({"type": "image_url", "image_url": 7}, "image_url", "invalid_type"),
    ],
)
async def test_what_is_no_image_is_named(part: dict[str, Any], place: str, code: str) -> None:
    with pytest.raises(RequestError) as raised:
        await job_of(text_part("x"), part)
    assert (raised.value.param, raised.value.code) == (f"messages[0].content[1].{place}", code)


async def test_too_many_images() -> None:
    with pytest.raises(RequestError, match="is image 4 of 5, a request may have 3") as raised:
        await job_of(*[image_part(data_url(PNG))] * 5)
    assert raised.value.param == "messages[0].content[3]"


async def test_what_does_not_go_with_images() -> None:
    image = image_part(data_url(PNG))
    with pytest.raises(RequestError, match="'truncate_prompt_tokens' does not work with images"):
        await job_of(image, text_part("x" * 90), truncate_prompt_tokens=20)
    with pytest.raises(RequestError, match="has 2 image tokens for 1 images"):
        await job_of(image, text_part("see <image>"))
    with pytest.raises(RequestError, match="has 1 image tokens for 0 images"):
        await job_of(text_part("see <image>"))
    with pytest.raises(RequestError, match='is "hologram", must be one of text, '):
        await job_of(image, {"type": "hologram"})


async def test_a_model_that_takes_no_images() -> None:
    chats = AllRequests(make_directory()).chat
    messages = [{"role": "user", "content": [image_part(data_url(PNG))]}]
    sentence = r"'messages\[0\]\.content\[0\]' is an image, and the model 'tiny' takes no images"
    with pytest.raises(RequestError, match=sentence):
        await chats.job({"model": "tiny", "messages": messages}, Caller())


async def test_workers_that_take_no_images() -> None:
    """Those on GPUs of a model whose card tells of images: nothing is queued."""

    class Blind(FakeCatalog):
        async def heartbeats(self) -> PoolHeartbeats:
            return PoolHeartbeats(
                {card.pool: ["ready"]}, {}, {card.pool: Limits(takes_no_images=True)}
            )

    bundle = make_seeing_bundle()
    card = make_seeing_card(bundle)
    chats = AllRequests(ModelDirectory(Blind(bundle, card))).chat  # type: ignore[arg-type]
    messages = [{"role": "user", "content": [image_part(data_url(PNG))]}]
    sentence = "is an image, and no worker of the model 'tiny' takes images now"
    with pytest.raises(RequestError, match=sentence) as raised:
        await chats.job({"model": "tiny", "messages": messages}, Caller())
    assert (raised.value.status_code, raised.value.code) == (400, "unsupported_parameter")
    text = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    assert (await chats.job(text, Caller())).prompts[0].images == ()


async def test_the_pixels_travel_by_the_object_store(stack: Stack) -> None:
    bundle = make_seeing_bundle()
    await register(stack.cluster, bundle, make_seeing_card(bundle))
    running = await stack.start_frontend()
    stored: dict[str, bytes] = {}
    messages = [{"role": "user", "content": [text_part("x"), image_part(data_url(PNG))]}]
    stack.backend.hold.clear()
    async with running.client() as client:
        asking = asyncio.create_task(
            client.post(
                "/v1/chat/completions", json={"model": "tiny", "messages": messages, "n": 2}
            )
        )
        await stack.until_queued(2)
        store = await stack.cluster.nc.jetstream().object_store(
            stack.cluster.subjects.objects_bucket
        )
        for entry in await store.list():
            if entry.name.startswith("prompt-"):
                stored[entry.name] = (await store.get(entry.name)).data or b""
        stack.backend.hold.set()
        answer = await asking
    assert answer.status_code == 200
    num_prompt_tokens = answer.json()["usage"]["prompt_tokens"]
    assert len(stack.backend.runs) == 2
    for run in stack.backend.runs.values():
        request = run.request
        data = prompt_data(request, stored[request.prompt_object])
        assert data.pixels == (pixels_of(PNG),)
        assert data.prompt_ids == request.prompt_ids
        assert len(unpack_token_ids(data.prompt_ids)) == num_prompt_tokens
        assert request.images[0].digest == LoadedImage.of(data.pixels[0], PIXELS).digest
        await until_object_is_gone(stack, request.prompt_object)
    refused = messages[0] | {"content": [image_part("data:,x")]}
    async with running.client() as client:
        answer = await client.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": [refused]}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0]"


async def test_responses_take_images_and_see_them_again(stack: Stack) -> None:
    bundle = make_seeing_bundle()
    await register(stack.cluster, bundle, make_seeing_card(bundle))
    running = await stack.start_frontend()
    image = {"type": "input_image", "image_url": data_url(PNG)}
    content = [{"type": "input_text", "text": "See "}, image]
    first = {"model": "tiny", "input": [{"role": "user", "content": content}]}
    async with running.client() as client:
        answer = await client.post("/v1/responses", json=first)
        assert answer.status_code == 200
        second = {"model": "tiny", "input": "and?", "previous_response_id": answer.json()["id"]}
        assert (await client.post("/v1/responses", json=second)).status_code == 200
        items = await client.get(f"/v1/responses/{answer.json()['id']}/input_items")
        bad = {"type": "input_image", "image_url": "data:,x"}
        refused = first | {"input": [{"role": "user", "content": [*content, bad]}]}
        error = (await client.post("/v1/responses", json=refused)).json()["error"]
    shown = items.json()["data"][0]["content"][1]
    assert shown == image | {"detail": "auto", "file_id": None}
    assert error["param"] == "input[0].content[2]"
    one, two = stack.backend.runs.values()
    image_ids = [IMAGE_TOKEN_ID] * NUM_TOKENS
    begin = [*ids("<|im_start|>user\nSee "), *image_ids, *ids("<|im_end|>\n")]
    assert unpack_token_ids(one.request.prompt_ids)[: len(begin)] == begin
    assert unpack_token_ids(two.request.prompt_ids)[: len(begin)] == begin
    assert len(two.request.prompt_ids) > len(one.request.prompt_ids)
    assert one.request.images == two.request.images
    for run in (one, two):
        await until_object_is_gone(stack, run.request.prompt_object)


CALL = {"name": "look", "arguments": "{}"}
SENTENCE = "'{}' is an image that is none of PNG, JPEG, WEBP, GIF, or damaged"


def results(url: str) -> dict[str, dict[str, Any]]:
    """What a tool returned, an image between words, as each API has it; by route."""
    call = {"id": "c", "type": "function", "function": CALL}
    parts = [text_part("a"), image_part(url), text_part("b")]
    blocks = [text_part("a"), {"type": "image", "source": {"type": "url", "url": url}}]
    output = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": url},
        {"type": "input_text", "text": "b"},
    ]
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [*blocks, text_part("b")]}
    return {
        "/v1/chat/completions": {
            "messages": [
                {"role": "user", "content": "See"},
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": parts},
            ]
        },
        "/v1/messages": {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": "See"},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ],
        },
        "/v1/responses": {
            "input": [
                {"role": "user", "content": "See"},
                {"type": "function_call", "call_id": "c", **CALL},
                {"type": "function_call_output", "call_id": "c", "output": output},
            ]
        },
    }


PLACES = ("messages[2].content[1]", "messages[2].content[0].content[1]", "input[2].output[1]")


async def test_results_of_tools_show_images(stack: Stack) -> None:
    bundle = make_seeing_bundle()
    await register(stack.cluster, bundle, make_seeing_card(bundle))
    running = await stack.start_frontend()
    async with running.client() as client:
        for route, body in results(data_url(PNG)).items():
            answer = await client.post(route, json={"model": "tiny", **body})
            assert answer.status_code == 200, answer.text
        shown = answer.json()
        items = await client.get(f"/v1/responses/{shown['id']}/input_items?order=asc")
        more = {"model": "tiny", "input": "and?", "previous_response_id": shown["id"]}
        assert (await client.post("/v1/responses", json=more)).status_code == 200
        for (route, body), place in zip(results("data:,x").items(), PLACES, strict=True):
            refused = await client.post(route, json={"model": "tiny", **body})
            assert refused.status_code == 400
            assert refused.json()["error"]["message"] == SENTENCE.format(place)
    image = {"type": "input_image", "image_url": data_url(PNG), "detail": "auto", "file_id": None}
    assert items.json()["data"][2]["output"][1] == image
    image_ids = [IMAGE_TOKEN_ID] * NUM_TOKENS
    told = ids("<|im_start|>user\nThe function returned: a")
    first, *others = [
        unpack_token_ids(run.request.prompt_ids) for run in stack.backend.runs.values()
    ]
    begin = first.index(IMAGE_TOKEN_ID)
    assert first[begin - len(told) :][: len(told) + NUM_TOKENS + 1] == [
        *told,
        *image_ids,
        *ids("b"),
    ]
    assert others[:2] == [first, first]
    assert others[2][: begin + NUM_TOKENS] == first[: begin + NUM_TOKENS]
    requests = [run.request for run in stack.backend.runs.values()]
    assert len({each.images for each in requests}) == 1


async def test_an_error_of_a_tool_and_an_image_that_words_were_put_before() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "eA=="}
    result = {"type": "tool_result", "tool_use_id": "c", "is_error": True}
    block = result | {"content": [{"type": "image", "source": source}]}
    turns = msgspec.convert([{"role": "user", "content": [block]}], list[Turn])
    (message,) = conversation_of(None, turns).messages
    assert message["content"] == joined(["Error:", Seen.IMAGE])
    piece = {"content": f"It said: {joined([Seen.IMAGE, 'b'])}"}
    assert [tuple(part.values()) for part in with_parts(piece)["content"]] == [
        ("text", "It said: "),
        ("image",),
        ("text", "b"),
    ]
