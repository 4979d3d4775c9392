"""`--fast`: the tests that start no process and no broker, and do not compute with torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
# What the modules in there import or compute takes longer than hundreds of fast tests.
LEFT_OUT = (
    "bench/test_gpu_bench.py",
    "deploy/test_demo_model.py",
    "deploy/test_helm_chart.py",
    "docs/test_client_contract.py",
    "docs/test_model_table.py",
    "e2e",
    "frontend/page",
    "shared/gguf/test_tokenizers.py",
    "simulation",
)
# Of the engine, what decides without torch who runs in a step, and on which pages.
ENGINE, FAST_ENGINE = ROOT / "worker/engine", ("cache", "device", "schedule", "scripted")
NUM_FAST_EXAMPLES = 20  # of a property, where the default is 100
_SLOW_MARKS = ("e2e", "gpu", "integration", "slow", "torch")
# What a module says of all its tests: it is not even imported.
_MODULE_MARKS = re.compile(r"^pytestmark = (\[\n.*?^\]|[^\n]*)", re.MULTILINE | re.DOTALL)
_IS_SLOW = re.compile(rf"\bmark\.({'|'.join(_SLOW_MARKS)})\b")
_STARTS = ("os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen")


class FastTests:
    """A test that is no fast one fails here, and says which mark it lacks."""

    def __init__(self) -> None:
        self._left_out = [ROOT / name for name in LEFT_OUT]
        self._started: list[str] = []
        sys.addaudithook(self._on_event)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        path = collection_path
        of_torch = path.parent == ENGINE and path.name not in FAST_ENGINE
        return True if path in self._left_out or of_torch or _is_slow_module(path) else None

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        fast = [item for item in items if not any(map(item.get_closest_marker, _SLOW_MARKS))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(fast)])
        items[:] = fast

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        had_torch = "torch" in sys.modules
        report = yield
        if not had_torch and "torch" in sys.modules:
            report.outcome = "failed"
            report.longrepr = f"{collector.nodeid} imports torch: mark the module torch"
        return report

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


def _is_slow_module(path: Path) -> bool:
    if path.suffix != ".py":
        return False
    marks = _MODULE_MARKS.search(path.read_text())
    return marks is not None and _IS_SLOW.search(marks[1]) is not None
