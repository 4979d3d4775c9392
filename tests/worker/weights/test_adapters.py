"""LoRA adapters on the I/O side of a worker: no request runs without the one that it names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.catalog.adapter_catalog import AdapterCatalog
from shared.checkpoint.lora_files import LoraFiles
from shared.errors import ConfigError, NotFound
from shared.protocol.codec import encode
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.model_cards import AdapterCard
from shared.protocol.request import GenerateRequest
from shared.token_log.fold import RequestFold
from tests.lora_adapters import make_lora_files
from tests.worker.io_stage import POOL, Stage, ids, make_card, make_request
from tests.worker.running_worker import output_of, running_worker

pytestmark = pytest.mark.integration

LENGTH = Finish(FinishReason.LENGTH)


@pytest.fixture
def files(tmp_path: Path) -> LoraFiles:
    return make_lora_files(tmp_path / "one", 1.0)


@pytest.fixture
async def catalog(stage: Stage) -> AdapterCatalog:
    bucket = stage.cluster.bucket(stage.cluster.subjects.models_bucket)
    await bucket.put(POOL, encode(make_card()))
    return AdapterCatalog(stage.cluster)


async def result_of(stage: Stage, request: GenerateRequest) -> RequestFold:
    await stage.until_finished(request.rid)
    return await stage.fold(request.rid)


async def test_an_adapter_is_loaded_before_what_needs_it(
    stage: Stage, catalog: AdapterCatalog, files: LoraFiles
) -> None:
    async with running_worker(stage) as worker:
        await catalog.add(POOL, "one", files, "/somewhere")
        await stage.submit(make_request(adapter=files.revision))
        run = await worker.engine.next_run()
        assert run.options.adapter == files.revision
        folder = worker.engine.adapters[files.revision]
        assert LoraFiles.read(folder) == files
        await stage.submit(make_request())
        assert (await worker.engine.next_run()).options.namespace != run.options.namespace
        worker.engine.emit(run.run_id, ids("a"), LENGTH)


async def test_another_engine_gets_the_adapters_again(
    stage: Stage, catalog: AdapterCatalog, files: LoraFiles
) -> None:
    await catalog.add(POOL, "one", files, "/somewhere")
    request = make_request(adapter=files.revision)
    async with running_worker(stage) as worker:
        await stage.submit(request)
        run = await worker.engine.next_run()
        worker.engine.emit(run.run_id, ids("ab"))
        await stage.until_logged(request.rid, 2)
        worker.engine.die()
        engine = await worker.next_engine()
        again = await engine.next_run()
        assert (again.options.adapter, output_of(again)) == (files.revision, ids("ab"))
        assert files.revision in engine.adapters
        engine.emit(again.run_id, ids("c"), LENGTH)
        await stage.until_finished(request.rid)


async def test_requests_of_an_unloaded_adapter_end(
    stage: Stage, catalog: AdapterCatalog, files: LoraFiles
) -> None:
    await catalog.add(POOL, "one", files, "/somewhere")
    waiting = make_request(adapter=files.revision)
    await stage.submit(waiting)
    await catalog.remove(POOL, "one")
    async with running_worker(stage) as worker:
        fold = await result_of(stage, waiting)
        assert fold.finish is not None
        assert fold.finish.reason is FinishReason.ADAPTER_UNLOADED
        assert "was unloaded" in (fold.finish.message or "")
        assert worker.engine.runs == {}
        await worker.until_idle()


async def test_a_worker_with_another_adapter_goes_on(
    stage: Stage, catalog: AdapterCatalog, files: LoraFiles
) -> None:
    """What one worker began, another one goes on with: under the same adapter."""
    await catalog.add(POOL, "one", files, "/somewhere")
    request = make_request(adapter=files.revision)
    async with running_worker(stage) as first:
        await stage.submit(request)
        run = await first.engine.next_run()
        first.engine.emit(run.run_id, ids("ab"))
        await stage.until_logged(request.rid, 2)
        async with running_worker(stage) as second:
            await first.stop()
            again = await second.engine.next_run()
            assert (again.options.adapter, output_of(again)) == (files.revision, ids("ab"))
            second.engine.emit(again.run_id, ids("c"), LENGTH)
            await stage.until_finished(request.rid)


async def test_a_required_adapter_that_cannot_be_loaded_ends_the_worker(
    stage: Stage, catalog: AdapterCatalog, files: LoraFiles
) -> None:
    await catalog.add(POOL, "one", files, "/somewhere")
    required = {files.revision: "one"}

    async def run() -> None:
        async with running_worker(stage, is_ready=False, required_loras=required) as worker:
            worker.engine.adapter_error = "of another shape"
            worker.engine.become_ready()
            await asyncio.wait([worker.task], timeout=10)

    with pytest.raises(ConfigError, match="lora 'one': of another shape"):
        await run()


async def test_names_are_taken_once(
    stage: Stage, catalog: AdapterCatalog, files: LoraFiles, tmp_path: Path
) -> None:
    other = make_lora_files(tmp_path / "other", 2.0)
    await catalog.add(POOL, "one", files, "/a")
    await catalog.add(POOL, "one", files, "/b")
    await catalog.add(POOL, "same", files, "/a")
    with pytest.raises(ConfigError, match=f"'one' is loaded with revision {files.revision}"):
        await catalog.add(POOL, "one", other, "/c")
    with pytest.raises(ConfigError, match="cannot have the name of 'm'"):
        await catalog.add(POOL, "m", files, "/a")
    with pytest.raises(ConfigError, match="cannot have the name"):
        await catalog.add(POOL, "a\nb", files, "/a")
    assert [card.name for card in await catalog.cards(POOL)] == ["one", "same"]
    await catalog.remove(POOL, "one")
    assert (await catalog.files(POOL, files.revision)) == files  # "same" needs them
    await catalog.add(POOL, "same", other, "/c", may_replace=True)
    with pytest.raises(ConfigError, match="not in the store"):
        await catalog.files(POOL, files.revision)
    with pytest.raises(NotFound, match="no LoRA adapter 'one'"):
        await catalog.remove(POOL, "one")


async def test_concurrent_loads_are_all_there(
    stage: Stage, catalog: AdapterCatalog, files: LoraFiles
) -> None:
    names = [f"n{idx}" for idx in range(6)]
    await asyncio.gather(*(catalog.add(POOL, name, files, "/a") for name in names))
    assert sorted(card.name for card in await catalog.cards(POOL)) == names


async def test_unloading_leaves_the_files_of_who_loads_the_same_meanwhile(
    stage: Stage, catalog: AdapterCatalog, files: LoraFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    await catalog.add(POOL, "one", files, "/a")
    unloading, loading = AdapterCatalog(stage.cluster), catalog
    cards = unloading.cards

    async def loaded_meanwhile(pool: str) -> tuple[AdapterCard, ...]:
        seen = await cards(pool)
        await loading.add(POOL, "one", files, "/b")
        return seen

    monkeypatch.setattr(unloading, "cards", loaded_meanwhile)
    await unloading.remove(POOL, "one")
    assert [card.name for card in await loading.cards(POOL)] == ["one"]
    assert await loading.files(POOL, files.revision) == files
