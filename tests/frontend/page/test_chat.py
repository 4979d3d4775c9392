"""The Chat tab in a real browser, before a real service with the demo model."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, FilePayload, Page, Route, expect

from shared.admin.control import Continue, ControlRequest, Pause, PauseMode
from shared.admin.control_plane import ControlPlane, Target
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from tests.deploy.local_stack import LocalStack
from tests.eventually import wait_until
from tests.frontend.page.conftest import KEY, PHONE, WAIT_MS, Visit

pytestmark = [pytest.mark.integration, pytest.mark.e2e]

HEADERS = {"Authorization": f"Bearer {KEY}"}
LONG = json.dumps({"ignore_eos": True})  # until the context is full
STORY = "Tell me a story about a dragon."

Visitor = Callable[..., Visit]


@pytest.fixture
def page(visit: Visitor, url: str) -> Page:
    return visit(url).with_key()


@pytest.fixture
def api(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers=HEADERS, timeout=60)


def ask(page: Page, text: str) -> None:
    page.fill("#composer-input", text)
    page.press("#composer-input", "Enter")


def wait_answer(page: Page) -> None:
    page.wait_for_selector(".message:last-child:not(.is-running) .message-buttons")
    expect(page.locator("#send-button")).to_be_visible(timeout=WAIT_MS)


def wait_text(page: Page, num_characters: int) -> None:
    """Until the answer that is being made is so long."""
    script = "document.querySelector('.is-running > .markdown')?.textContent.length"
    wait_until(lambda: (page.evaluate(script) or 0) > num_characters, timeout_s=60)


def kept(page: Page) -> list[dict[str, Any]]:
    """The messages of the current conversation, as the browser keeps them."""
    found: list[dict[str, Any]] = page.evaluate(
        """() => {
            const read = (name) => JSON.parse(localStorage.getItem(`jetflock:/:${name}`));
            return read(`conversation:${read('current')}`).messages;
        }"""
    )
    return found


def whole(api: httpx.Client, rid: str) -> str:
    """What the service says that the answer was."""
    answer = api.get(f"/v1/streams/{rid}", params={"stream": "false"})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def tell_workers(service: LocalStack, order: ControlRequest) -> None:
    """In a thread: the browser's driver has this one's loop."""

    async def tell() -> None:
        async with open_cluster(ClusterConfig(nats_url=service.nats_url), "test") as cluster:
            replies = await ControlPlane(cluster, "test").send(Target(None, ()), order)
            assert [reply.ok for reply in replies] == [True]

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, tell()).result(30)


def test_a_chat_streams_and_tells_what_it_cost(page: Page, api: httpx.Client) -> None:
    ask(page, STORY)
    wait_text(page, 5)
    wait_answer(page)
    answer = kept(page)[-1]
    shown = page.locator(".message:last-child > .markdown")
    assert "".join(shown.inner_text().split()) == "".join(answer["content"].split())
    assert whole(api, answer["rid"]) == answer["content"]
    numbers = answer["numbers"]
    foot = page.locator(".message:last-child .numbers")
    cost = (f"{numbers['promptTokens']} tokens in", " out", "finish reason: stop")
    for text in ("first token ", " tok/s", *cost, "id "):
        expect(foot).to_contain_text(text)
    [hop] = api.get(f"/v1/streams/{answer['rid']}/path").json()["paths"][0]
    expect(foot).to_contain_text(hop["worker"].removeprefix("worker-")[:8])
    text = shown.inner_text()
    page.reload()
    expect(page.locator(".conversation")).to_have_text([STORY])
    expect(shown).to_have_text(text, use_inner_text=True)


def test_stop_ends_the_request_in_the_service(page: Page, api: httpx.Client) -> None:
    page.fill("#chat-more", LONG)
    ask(page, STORY)
    wait_text(page, 20)
    page.keyboard.press("Escape")
    wait_answer(page)
    expect(page.locator(".message:last-child .notice")).to_have_text("Stopped.")
    rid = kept(page)[-1]["rid"]
    assert api.get(f"/v1/streams/{rid}", params={"stream": "false"}).status_code == 499


def test_a_stream_survives_a_reload_and_a_dead_frontend(
    page: Page, api: httpx.Client, service: LocalStack
) -> None:
    page.fill("#chat-more", LONG)
    page.fill("#chat-max_tokens", "150")
    ask(page, STORY)
    wait_text(page, 10)
    tell_workers(service, Pause(PauseMode.FREEZE, freeze_s=60))
    resumed = page.locator(".is-running .chip.is-good")
    page.reload()
    expect(resumed).to_have_text("resumed")
    frontend = service.role("frontend")
    frontend.kill()
    expect(resumed).to_have_text(re.compile("resumed 2."), timeout=WAIT_MS)
    tell_workers(service, Continue())
    wait_answer(page)
    answer = kept(page)[-1]
    assert answer["state"] == "done"
    assert answer["finishReason"] == "length"
    assert answer["content"] == whole(api, answer["rid"])
    assert service.role("frontend").pid != frontend.pid


def test_an_answer_is_made_again_continued_and_asked_for_otherwise(
    page: Page, api: httpx.Client
) -> None:
    page.fill("#chat-max_tokens", "4")
    ask(page, STORY)
    wait_answer(page)
    first = kept(page)[-1]
    page.get_by_label("Regenerate").click()
    wait_until(lambda: kept(page)[-1]["rid"] not in (None, first["rid"]))
    wait_answer(page)
    again = kept(page)[-1]
    assert len(kept(page)) == 2
    answer = page.locator(".from-assistant")
    expect(answer.locator(".versions")).to_have_text("2/2")
    page.get_by_label("Previous version").click()
    expect(answer.locator(".markdown").last).to_have_text(first["content"])
    page.reload()
    expect(answer.locator(".versions")).to_have_text("1/2")
    page.get_by_label("Next version").click()
    assert kept(page)[-1]["rid"] == again["rid"]
    page.get_by_label("Continue", exact=True).click()
    wait_until(lambda: kept(page)[-1]["rid"] not in (None, again["rid"]))
    wait_answer(page)
    longer = kept(page)[-1]
    assert longer["content"].startswith(again["content"])
    assert longer["content"] == again["content"] + whole(api, longer["rid"])
    page.get_by_label("Edit and send again").click()
    page.fill(".editor", "Name three colours.")
    page.get_by_text("Send again").click()
    wait_until(lambda: kept(page)[-1]["rid"] not in (None, longer["rid"]))
    wait_answer(page)
    assert kept(page)[0]["content"] == "Name three colours."
    assert len(kept(page)) == 2
    page.locator(".from-user").get_by_label("Previous version").click()
    assert [message["content"] for message in kept(page)] == [STORY, longer["content"]]
    page.get_by_label("Edit", exact=True).click()
    page.fill(".editor", "Better.")
    page.get_by_text("Save").click()
    expect(answer.locator(".versions")).to_have_text("3/3")
    page.locator(".from-user").get_by_label("Next version").click()
    expect(page.locator(".from-user .plain")).to_have_text("Name three colours.")


def test_settings_go_into_the_request_and_what_is_wrong_is_not_sent(
    page: Page, api: httpx.Client
) -> None:
    [model] = api.get("/v1/models").json()["data"]
    default = f"{model['sampling_defaults']['temperature']:g}"
    expect(page.locator("#chat-temperature")).to_have_attribute("placeholder", default)
    presets = page.locator("#chat-settings .presets")
    presets.get_by_text("Creative").click()
    expect(page.locator("#chat-min_p")).to_have_value("0.05")
    presets.get_by_text("Default").click()
    expect(page.locator("#chat-min_p")).to_have_value("")
    page.fill("#chat-system", "Be kind.")
    page.fill("#chat-temperature", "0")
    page.fill("#chat-stop", "end\\n\ntwo")
    page.fill("#chat-schema", '{"type": "object"')
    ask(page, STORY)
    expect(page.locator("#chat-schema-error")).to_contain_text("Not JSON")
    assert page.locator(".message").count() == 0
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    page.fill("#chat-schema", json.dumps(schema | {"additionalProperties": False}))
    with page.expect_request("**/v1/chat/completions") as sent:
        page.press("#composer-input", "Enter")
    body: Any = sent.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be kind."}
    assert body["temperature"] == 0
    assert body["stop"] == ["end\n", "two"]
    wait_answer(page)
    assert json.loads(kept(page)[-1]["content"]) == {"a": 1}
    page.locator("#transcript").get_by_label("Copy as curl or Python").click()
    expect(page.locator("#code-text")).to_contain_text("curl -N http://127.0.0.1:")
    page.click("#code-python")
    code = page.inner_text("#code-text")
    assert KEY not in code
    compile(code, "the copied code", "exec")


def test_an_answer_is_forked_at_a_word(
    page: Page, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.fill("#chat-max_tokens", "24")
    ask(page, STORY)
    wait_answer(page)
    source = kept(page)[-1]
    page.get_by_label("Fork at a word").click()
    words = page.locator(".word-picker .word")
    expect(words.first).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(words.nth(1)).to_be_focused()
    word = words.nth(3)
    begins = " ".join(source["content"].split()[:3])
    assert word.inner_text() == source["content"].split()[3]
    word.click()
    wait_answer(page)
    fork = kept(page)[-1]
    assert fork["rid"] != source["rid"]
    assert fork["content"].startswith(begins)
    assert whole(api, fork["rid"]) == fork["content"]
    expect(page.locator(".versions")).to_have_text("2/2")
    page.locator(".message:last-child").get_by_label("Copy as curl or Python").click()
    page.click("#code-python")
    monkeypatch.setenv("API_KEY", KEY)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(page.inner_text("#code-text"), {})
    assert printed.getvalue().startswith(begins)
    page.click("#code-close")
    page.get_by_label("Previous version").click()
    expect(page.locator(".message:last-child .numbers")).to_contain_text(source["rid"][:8])


PASTE = """async () => {
    const canvas = new OffscreenCanvas(3000, 30);
    canvas.getContext('2d');
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File([await canvas.convertToBlob()], 'wide.png'));
    const event = { clipboardData, bubbles: true, cancelable: true };
    byId('composer-input').dispatchEvent(new ClipboardEvent('paste', event));
}"""


def test_a_picture_that_was_pasted_goes_with_the_message(page: Page) -> None:
    text = FilePayload(name="x.png", mimeType="image/png", buffer=b"no picture")
    page.set_input_files("#picture-file", text)
    expect(page.locator(".toast")).to_contain_text("x.png is not a picture")
    for number in (1, 2):
        page.evaluate(PASTE)
        expect(page.locator("#picture-tray img")).to_have_count(number)
    page.get_by_label("Remove this picture").first.click()
    page.fill("#composer-input", "What is this?")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.press("#composer-input", "Enter")
    body: Any = sent.value.post_data_json
    words, picture = body["messages"][0]["content"]
    assert words == {"type": "text", "text": "What is this?"}
    data = base64.b64decode(picture["image_url"]["url"].partition(",")[2])
    assert Image.open(io.BytesIO(data)).size == (1024, 10)
    expect(page.locator("#picture-tray")).to_be_hidden()
    page.reload()
    expect(page.locator(".from-user .picture")).to_have_count(1)
    expect(page.locator(".notice.is-bad")).to_contain_text("image")


def test_conversations_leave_the_browser_and_come_back(
    page: Page, visit: Visitor, url: str, tmp_path: Path
) -> None:
    page.fill("#chat-max_tokens", "3")
    ask(page, STORY)
    wait_answer(page)
    with page.expect_download() as download:
        page.click("#export-button")
    file = tmp_path / "conversations.json"
    download.value.save_as(file)
    other = visit(url).with_key()
    other.set_input_files("#import-file", {"name": "x", "mimeType": "", "buffer": b"{}"})
    expect(other.locator(".toast")).to_contain_text("Nothing was imported")
    other.set_input_files("#import-file", file)
    other.click(".conversation")
    assert kept(other) == kept(page)
    other.get_by_label(f"Delete “{STORY}”").click()
    other.click("#confirm-yes")
    expect(other.locator(".conversation")).to_have_count(0)
    assert other.evaluate("Object.keys(localStorage).join()").count("conversation:") == 0


def test_it_says_what_was_accepted_and_what_a_request_waits_for(page: Page) -> None:
    page.fill("#chat-max_tokens", "3")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, STORY)
    notice = page.locator(".message:last-child .notice")
    expect(notice).to_contain_text("has not been accepted yet")
    expect(notice).to_contain_text("jetflock serve")
    models = [
        {"id": "jetflock-demo", "parent": None, "status": "idle", "tasks": ["generate"]},
        {"id": "other", "parent": None, "status": "ready", "tasks": ["generate"]},
    ]
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": models}))
    page.route("**/v1/loads", lambda route: route.fulfill(json={"loads": [], "queues": []}))
    waiting = page.locator(".waiting")
    expect(waiting).to_contain_text("no worker is serving jetflock-demo")
    expect(waiting.get_by_text("Ask other instead")).to_be_visible()
    page.unroute("**/v1/chat/completions")
    wait_answer(page)
    assert kept(page)[-1]["state"] == "done"
    expect(waiting).to_have_count(0)


def test_a_service_without_a_model_that_writes_says_so(page: Page) -> None:
    models = [{"id": "ears", "parent": None, "status": "ready", "tasks": ["transcribe"]}]
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": models}))
    page.reload()
    ask(page, STORY)
    told = "No model here writes text: ears can transcribe."
    expect(page.get_by_text(told)).to_be_visible()


def test_conversations_are_found_renamed_pinned_and_taken_along(page: Page, tmp_path: Path) -> None:
    page.fill("#chat-max_tokens", "3")
    for text in ("Name three colours.", STORY):
        page.click("#new-chat")
        ask(page, text)
        wait_answer(page)
    listed = page.locator(".conversation")
    expect(listed).to_have_text([STORY, "Name three colours."])
    page.fill("#conversation-search", "THREE")
    expect(listed).to_have_text(["Name three colours."])
    listed.click()
    page.get_by_label("Rename “").click()
    page.get_by_label("Name", exact=True).fill("Colours")
    page.keyboard.press("Enter")
    expect(page.locator("#chat-title")).to_have_text("Colours")
    page.get_by_label("Pin “Colours”").click()
    page.fill("#conversation-search", "nowhere")
    expect(page.locator("#conversation-list")).to_have_text("No conversations match.")
    page.reload()
    expect(listed).to_have_text(["Colours", STORY])
    with page.expect_download() as download:
        page.get_by_label("Export “Colours” as Markdown").click()
    assert download.value.suggested_filename == "Colours.md"
    file = tmp_path / "chat.md"
    download.value.save_as(file)
    answer = kept(page)[-1]["content"]
    parts = ("# Colours", "## You", "Name three colours.", "## jetflock-demo", answer)
    assert file.read_text() == "\n\n".join(parts) + "\n"


def test_it_asks_for_a_key_when_one_is_needed(visit: Visitor, url: str) -> None:
    page = visit(url).page
    expect(page.locator("#key-dialog")).to_be_visible()
    page.fill("#key-input", "wrong")
    page.press("#key-input", "Enter")
    expect(page.locator("#key-reason")).to_have_text("The API key is not known here.")
    page.fill("#key-input", KEY)
    page.press("#key-input", "Enter")
    expect(page.locator("#chat-model")).to_have_value("jetflock-demo")
    assert page.evaluate("Object.values(sessionStorage).join()") == KEY
    assert KEY not in page.evaluate("JSON.stringify(localStorage)")


# Of what may be pressed or typed into, and is seen: what lies beside the screen, unless it may be
# scrolled there.
CUT = """() => [...document.querySelectorAll('button, input, select, textarea, a[href]')]
    .filter((each) => each.checkVisibility() && !each.closest('.cl-scroll, .skip'))
    .filter((each) => {
        const { left, right } = each.getBoundingClientRect();
        return left < 0 || right > document.documentElement.clientWidth;
    })
    .map((each) => each.outerHTML)"""


def test_a_phone_shows_all_of_it(visit: Visitor, url: str) -> None:
    page = visit(url, viewport=PHONE, has_touch=True, is_mobile=True).with_key()
    page.tap("#settings-toggle")
    page.fill("#chat-max_tokens", "20")
    page.keyboard.press("Escape")
    page.fill("#composer-input", "One line,")
    page.press("#composer-input", "Enter")
    page.keyboard.type("and another: " + "https://a.example/" + "x" * 200)
    page.tap("#send-button")
    wait_answer(page)
    assert kept(page)[0]["content"].startswith("One line,\nand another")
    page.tap("#sidebar-toggle")
    expect(page.locator(".conversation")).to_be_visible()
    for tab in ("chat", "completions", "cluster"):
        page.evaluate("name => { window.location.hash = name; }", tab)
        expect(page.locator(f"#panel-{tab}")).to_be_visible()
        for width in (320, 360, PHONE["width"]):
            page.set_viewport_size({"width": width, "height": 640})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("name => byId(name).scrollWidth", f"panel-{tab}") <= width
            assert page.evaluate(CUT) == []


def brightness(page: Page) -> float:
    """Of the background, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return max(map(float, re.findall(r"[\d.]+", colour)[:3]))


def test_it_is_light_or_dark_as_the_system_or_its_reader_wants(visit: Visitor, url: str) -> None:
    page = visit(url, color_scheme="dark").with_key()
    assert brightness(page) < 60
    page.click("#theme-button")
    assert brightness(page) > 200
    page.reload()
    assert brightness(page) > 200
    page.click("#theme-button")
    page.emulate_media(color_scheme="light")
    assert brightness(page) < 60


def test_it_works_below_a_path_of_another_host(visit: Visitor, url: str, browser: Browser) -> None:
    """As behind a proxy that serves it together with other things."""
    outside = "http://proxy.example/models/here"
    context = browser.new_context()

    def forward(route: Route) -> None:
        path = route.request.url.removeprefix(outside).removeprefix("/")
        route.fulfill(response=route.fetch(url=url + path))

    context.route(f"{outside}/**", forward)
    context.route(outside, forward)
    context.add_init_script(f"sessionStorage.setItem('jetflock:/models/here/:key', '{KEY}')")
    for address in (outside + "/", outside):  # some forget the slash
        page = context.new_page()
        page.goto(address)
        expect(page.locator("#chat-model")).to_have_value("jetflock-demo")
    page.fill("#chat-max_tokens", "3")
    ask(page, STORY)
    wait_answer(page)
    expect(page.locator(".message:last-child > .markdown")).not_to_be_empty()
    context.unroute_all(behavior="ignoreErrors")  # what is on its way
    context.close()
