"""The Cluster tab in a real browser: workers come, are killed and drained, and a stream goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from frontend.cluster.cluster_history import MIN_GAP_S
from tests.deploy.local_stack import REAL_ROLES, LocalStack
from tests.eventually import wait_until
from tests.frontend.page.conftest import PHONE, WAIT_MS, Visit, chromium
from tests.nats_server import free_port

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.timeout(240)]

Visitor = Callable[..., Visit]
ADMIN_KEY = "the-admin-key"
SCRIPTED = ("--scripted", "--scripted-token-s", "0.02")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Two workers, at a known pace; keys of an operator and a tenant; an admin plane."""
    chromium()
    folder = tmp_path_factory.mktemp("service")
    keys = [{"name": "olga", "key": "olga", "operator": True}, {"name": "tom", "key": "tom"}]
    (folder / "keys.json").write_text(json.dumps({"keys": keys}))
    (folder / "admin.key").write_text(ADMIN_KEY)
    flags = ("--workers", "2", "--api-keys-file", str(folder / "keys.json"))
    admin = ("--admin-port", str(free_port()), "--admin-key-file", str(folder / "admin.key"))
    stack = LocalStack(folder, *SCRIPTED, *flags, *admin, program=REAL_ROLES)
    try:
        yield stack.start().wait_ready()
    finally:
        stack.kill()


def open_tab(visit: Visitor, url: str, key: str, **options: object) -> Page:
    page = visit(f"{url}#cluster", **options).page
    page.fill("#key-input", key)
    page.press("#key-input", "Enter")
    expect(page.locator(".cl-live")).to_have_text("live", timeout=WAIT_MS)
    return page


def row(page: Page, worker: str) -> str:
    return f'.cl-row[data-worker="{worker}"]'


def ready_workers(page: Page) -> list[str]:
    expect(page.locator('.cl-row[data-state="ready"]')).to_have_count(2, timeout=WAIT_MS)
    rows = page.locator('.cl-row[data-state="ready"]').all()
    return [str(each.get_attribute("data-worker")) for each in rows]


def test_a_stream_survives_the_kill_of_its_worker(visit: Visitor, url: str) -> None:
    page = open_tab(visit, url, "olga")
    before = ready_workers(page)
    expect(page.locator(f"{row(page, before[0])} .cl-is-ready")).to_have_count(1)
    expect(page.locator("#cluster-num_running")).to_have_text(re.compile(r"^0 / \d+$"))
    page.click("#demo-start")
    page.click("#demo-kill")
    page.fill("#admin-key-input", "wrong")
    page.press("#admin-key-input", "Enter")
    page.fill("#admin-key-input", ADMIN_KEY)
    with page.expect_request("**/path"):  # of the stream as it is when the order is given
        page.press("#admin-key-input", "Enter")
    move = page.locator(".cl-demo-text .cl-move")
    expect(move).to_have_text(
        re.compile(r"it died; worker-\w+ goes on after \d+ ms"), timeout=WAIT_MS
    )
    expect(page.locator(".cl-demo")).to_have_attribute("data-verdict", "same", timeout=WAIT_MS)
    gone = page.locator('.cl-row[data-state="gone"]')
    expect(gone).to_contain_text("killed by signal 9", timeout=WAIT_MS)
    killed = gone.get_attribute("data-worker")
    assert killed in before
    page.check("#moved-only")
    expect(page.locator(".cl-card tbody tr")).to_have_count(1)
    path = page.locator("tr.is-moved .cl-path").first
    expect(path).to_contain_text("it died")
    assert path.locator(".cl-chip").first.get_attribute("data-worker") == killed
    new = set(ready_workers(page)) - set(before)
    assert len(new) == 1, "jetflock serve has started another one"
    expect(page.locator("#cluster-num_redelivered")).not_to_have_text("0")


def test_curves_begin_with_what_the_service_knows(visit: Visitor, url: str) -> None:
    headers = {"authorization": "Bearer olga"}
    with httpx.Client(base_url=url, headers=headers) as http:
        wait_until(lambda: len(http.get("cluster/history").json()["samples"]) >= 3, 60)
    page = open_tab(visit, url, "olga")
    line = page.locator(".cl-spark-line").first
    expect(line).to_have_attribute("d", re.compile("L"))
    first_x = float(str(line.get_attribute("d")).removeprefix("M").split()[0])
    assert first_x < 300 - 2 * MIN_GAP_S + 2, "it began before the page"


def test_a_worker_is_drained_by_two_clicks(visit: Visitor, url: str) -> None:
    page = open_tab(visit, url, "olga")
    worker = ready_workers(page)[0]
    page.evaluate("key => sessionStorage.setItem('jetflock:/:admin-key', key)", ADMIN_KEY)
    button = page.locator(f"{row(page, worker)} .cl-drain")
    button.click()
    expect(button).to_have_text("Drain?")
    expect(page.locator(row(page, worker))).to_have_attribute("data-state", "ready")
    button.click()
    expect(page.locator(row(page, worker))).to_have_attribute("data-state", "gone", timeout=WAIT_MS)
    assert worker not in ready_workers(page)


def test_a_tenant_sees_workers_and_gives_no_orders(visit: Visitor, url: str) -> None:
    page = open_tab(visit, url, "tom", viewport=PHONE, color_scheme="dark")
    ready_workers(page)
    expect(page.locator(".cl-order").first).to_be_hidden()
    expect(page.locator(".cl-demo .cl-hint")).to_contain_text("--admin-port")
    expect(page.locator("tr.is-moved")).to_have_count(0)
    assert "process" not in page.inner_text(".cl-rows")
    place = page.locator('.cl-row[data-state="ready"] .cl-place').first
    expect(place).to_contain_text(page.inner_text(".cl-models b"))
    width = page.evaluate("document.querySelector('#panel-cluster').scrollWidth")
    assert width <= PHONE["width"], "nothing needs sideways scrolling"


def test_it_watches_only_while_it_is_seen(visit: Visitor, url: str) -> None:
    page = open_tab(visit, url, "olga")
    with page.expect_event("requestfailed", lambda request: "cluster/events" in request.url):
        page.click("#tab-chat")
    with page.expect_request("**/cluster/events"):
        page.click("#tab-cluster")


def test_a_gpu_tells_its_formats_and_how_much_memory_is_free(visit: Visitor, url: str) -> None:
    """No worker here has one: its facts are given to the page's own function."""
    page = open_tab(visit, url, "olga")
    gpu: dict[str, object] = {"name": "NVIDIA H100", "dtype": "bfloat16", "kv_dtype": "fp8"}
    gpu |= {"free_bytes": 2 << 30, "total_bytes": 80 << 30}
    text = "NVIDIA H100, bfloat16, KV fp8, 2.0 of 80.0 GiB free"
    assert page.evaluate("gpu => gpuText(gpu)", gpu) == text
