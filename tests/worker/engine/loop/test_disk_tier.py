"""With a disk behind the pool nothing but time changes: bit for bit, also after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from shared.errors import ConfigError
from shared.telemetry.metrics import new_registry
from tests.worker.engine.families import FUSED, by_day
from tests.worker.engine.tiny_models import Rig, random_prompt, save_recurrent, save_tiny_model
from tests.worker.engine_fakes import make_add
from worker.affinity.page_peers import mark_of
from worker.engine.schedule.tier_ledger import TierLedger
from worker.engine.tiers.disk_tier import DiskTier
from worker.engine_link.engine_messages import AddRequest, PagePeer
from worker.metrics.worker_metrics import PageServerMetrics
from worker.transfer.page_server import PageServer
from worker.transfer.page_wire import Endpoint

SMALL = {"num_kv_tokens": 640, "max_running": 4, "max_step_tokens": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("llama", {}),
    "our C++": ("llama", {"dtype": "bfloat16", "cpu_kernels": "native"}),
    "int8 keys": ("llama", {"dtype": "bfloat16", "cpu_kernels": "native", "kv_dtype": "int8"}),
    "windows": ("qwen2 windows", {}),
}


def turns(num_turns: int) -> list[AddRequest]:
    """Four conversations that do not fit into memory, turn by turn."""
    texts = [random_prompt(200, seed) for seed in range(4)]
    adds: list[AddRequest] = []
    for turn in range(num_turns):
        for number, text in enumerate(texts):
            text += random_prompt(20, 100 * turn + number)
            run_id = len(adds) + 1
            adds.append(make_add(run_id, list(text), max_tokens=4, ignore_eos=True))
    return adds


def run(rig: Rig, adds: list[AddRequest]) -> None:
    for add in adds:
        rig.run(add)
        while rig.engine._scheduler.has_tier_work or tier_of(rig)._staged:
            rig.loop.turn()


@pytest.fixture(autouse=True)
def slow_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk would be slower than models of this size."""
    monkeypatch.setattr(TierLedger, "_computing_s", lambda _self, num_pages: 60.0 * num_pages)


def tier_of(rig: Rig) -> DiskTier:
    ledger = rig.engine._scheduler._tier
    assert ledger is not None
    assert isinstance(ledger.tier, DiskTier)
    return ledger.tier


@pytest.mark.parametrize("kind", by_day(KINDS, {"torch", "int8 keys"}))
def test_logits_are_those_without_a_disk(tmp_path: Path, kind: str) -> None:
    family, config = KINDS[kind]
    model_type, overrides = FUSED.get(family, (family, {}))
    path = save_tiny_model(tmp_path / "model", model_type, **overrides)
    disk = config | SMALL | {"kv_disk_dir": str(tmp_path / "kv")}
    adds = turns(3)
    rig = Rig(path, **disk)
    run(rig, adds[:8])
    first_hits = rig.engine._scheduler._tier.num_hits  # type: ignore[union-attr]
    tier_of(rig).close()
    warm = Rig(path, **disk)
    run(warm, adds[8:])
    alone = Rig(path, max_running=4, **config)
    for add in adds:
        alone.run(add)
    found = rig.logits | warm.logits
    assert found.keys() == alone.logits.keys()
    assert [key for key in found if not torch.equal(found[key], alone.logits[key])] == []
    assert first_hits >= 4 * 192
    cached = [warm.channel.finishes()[add.run_id].num_cached_tokens for add in adds[8:]]
    assert cached == [240] * 4, "a restart finds what was written"
    assert not tier_of(warm).counts.rejected
    tier_of(warm).close()


@pytest.mark.parametrize("kind", by_day(KINDS, {"our C++"}))
@pytest.mark.parametrize("way", ["one folder", "tcp"])
def test_a_prompt_that_another_worker_computed_is_gone_on_with(
    tmp_path: Path, kind: str, way: str
) -> None:
    """With its pages, although this one began before they were there; bit for bit."""
    family, config = KINDS[kind]
    model_type, overrides = FUSED.get(family, (family, {}))
    path = save_tiny_model(tmp_path / "model", model_type, **overrides)
    folders = [tmp_path / "kv", tmp_path / ("kv" if way == "one folder" else "other")]
    first, second = (
        Rig(path, role=role, **config | SMALL | {"kv_disk_dir": str(folder)})
        for role, folder in zip(("prefill", "decode"), folders, strict=True)
    )
    assert (tier_of(first).place == tier_of(second).place) == (way == "one folder")
    prompt = random_prompt(200, 0)
    run(first, [make_add(1, prompt, max_tokens=1, ignore_eos=True)])
    tokens = first.channel.tokens()[1]
    with served(folders[0], mark_of(tier_of(first).place)) as peer:
        seen = make_add(1, prompt, tokens, max_tokens=8, ignore_eos=True, seeks_pages=True)
        if way == "tcp":
            options = msgspec.structs.replace(seen.options, seeks_pages=False, peer=peer)
            seen = msgspec.structs.replace(seen, options=options)
        run(second, [seen])
    alone = Rig(path, max_running=4, **config)
    alone.run(make_add(1, prompt, max_tokens=8, ignore_eos=True))
    ledger = second.engine._scheduler._tier
    assert ledger is not None
    assert (ledger.num_hits, ledger.num_fetched) == (192, 192 * (way == "tcp"))
    found = first.logits | second.logits
    assert [key for key in alone.logits if not torch.equal(found[key], alone.logits[key])] == []
    assert tokens + second.channel.tokens()[1] == alone.channel.tokens()[1]
    for rig in (first, second):
        tier_of(rig).close()


@contextmanager
def served(folder: Path, mark: str) -> Iterator[PagePeer]:
    server = PageServer(Endpoint("127.0.0.1", 0), folder, PageServerMetrics(new_registry("t"), "m"))
    server.mark = mark
    yield PagePeer(str(server.endpoint), server.key)
    server.close()


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    disk = SMALL | {"kv_disk_dir": str(tmp_path / "kv")}
    for number in range(2):
        path = save_tiny_model(tmp_path / str(number), "llama", num_key_value_heads=1 + number)
        rig = Rig(path, **disk)
        run(rig, turns(1))
        assert rig.engine._scheduler._tier.num_hits == 0  # type: ignore[union-attr]
        tier_of(rig).close()


def test_what_it_does_not_go_with_is_refused_by_name(tmp_path: Path) -> None:
    path = save_recurrent(tmp_path / "model", "lfm2")
    with pytest.raises(ConfigError, match=r"kv_disk_dir=/kv is not possible with .*recurrent"):
        Rig(path, kv_disk_dir="/kv")
    path = save_tiny_model(tmp_path / "other", "llama")
    with pytest.raises(ConfigError, match=r"kv_disk_dir=/kv is not possible with draft_model=/"):
        Rig(path, kv_disk_dir="/kv", draft_model=str(path))
    with pytest.raises(ConfigError, match=r"kv_disk_dir=/kv is for models .* on a CPU with tp=1"):
        Rig(path, kv_disk_dir="/kv", device="cpu", tp=2)
