"""`--fast`: the tests that start no process and no broker, and do not compute with torch."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
# What the modules in there import takes longer than all of the fast tests.
LEFT_OUT = (
    "bench/test_gpu_bench.py",
    "deploy/test_demo_model.py",
    "e2e",
    "frontend/page",
    "simulation",
    *(
        f"worker/engine/{name}"
        for name in (
            *("beams", "cuda", "encoder", "grammar", "images", "layers", "loading", "loop", "lora"),
            *("models", "native", "process", "sampling", "speculation"),
        )
    ),
)
_SLOW_MARKS = ("e2e", "gpu", "integration", "slow", "torch")
_STARTS = ("os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen")


class FastTests:
    """A test that is no fast one fails here, and says which mark it lacks."""

    def __init__(self) -> None:
        self._left_out = [ROOT / name for name in LEFT_OUT]
        self._started: list[str] = []
        sys.addaudithook(self._on_event)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path in self._left_out else None

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        fast = [item for item in items if not any(map(item.get_closest_marker, _SLOW_MARKS))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(fast)])
        items[:] = fast

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        self._started.clear()
        had_torch = "torch" in sys.modules
        result = yield
        assert not self._started, f"{item.nodeid} starts {self._started[0]}: mark it e2e"
        assert had_torch or "torch" not in sys.modules, f"{item.nodeid}: mark it torch"
        return result

    def _on_event(self, event: str, args: tuple[object, ...]) -> None:
        if event in _STARTS:
            self._started.append(str(args[0] if args else event))
