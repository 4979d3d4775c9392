"""Profiles that an operator asks for: of the steps meanwhile, bounded, whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine.loop.step_profiler import StepProfiler
from worker.engine_link.engine_messages import SetProfiling


def test_a_profile_has_the_operations_of_its_steps_and_nothing_of_requests(
    tiny_llama: Path, tmp_path: Path
) -> None:
    rig = Rig(tiny_llama, profile_dir=str(tmp_path / "profiles"))
    add = make_add(1, random_prompt(9, 1), max_tokens=3, ignore_eos=True)
    rig.run(SetProfiling(30.0), SetProfiling(30.0), add)
    rig.run(SetProfiling(0.0), SetProfiling(0.0))
    profiler = rig.loop._profiler
    assert isinstance(profiler, StepProfiler)
    profiler.wait()
    (file,) = (tmp_path / "profiles").iterdir()
    names = {event.get("name", "") for event in json.loads(file.read_text())["traceEvents"]}
    assert any(name.startswith("aten::") for name in names)
    assert file.parent.stat().st_mode & 0o077 == 0


def test_one_that_nobody_ends_ends_by_itself(tmp_path: Path) -> None:
    now = 5.0
    profiler = StepProfiler(tmp_path, clock=lambda: now)
    profiler.begin(2.0)
    profiler.maybe_end()
    profiler.wait()
    assert not [*tmp_path.iterdir()]
    now = 7.0
    profiler.maybe_end()
    profiler.end()
    profiler.wait()
    assert len([*tmp_path.iterdir()]) == 1
    (tmp_path / "file").touch()
    broken = StepProfiler(tmp_path / "file" / "folder")
    broken.begin(2.0)
    broken.end()
    broken.wait()
