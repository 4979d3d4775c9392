"""Whatever a step launches was compiled before the engine is ready: no stream waits for that."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.launched_kernels import launched_kernels
from tests.worker.engine.cuda.test_gpu_engine import SAMPLINGS, GpuRig
from tests.worker.engine.tiny_models import random_prompt, save_tiny_llama
from tests.worker.engine_fakes import make_add


@pytest.mark.nightly
def test_nothing_is_compiled_once_the_engine_is_ready(tmp_path: Path, interpreter: None) -> None:
    """Rows and tokens by the number: 1, which Triton makes a kernel of its own for where it may,
    those that sixteen divides, and others.
    """
    kept = SAMPLINGS["kept"]
    with launched_kernels() as launched:
        rig = GpuRig(
            save_tiny_llama(tmp_path),
            LateDevice(),
            attention_backend="triton",
            max_running=3,
            max_step_tokens=20,
            cuda_graph_sizes=(2,),
            cuda_graph_tokens=(4,),
            overlap=True,
        )
        known = set(launched)
        rig.run(make_add(1, random_prompt(16, 1), max_tokens=2))
        rig.run(make_add(2, random_prompt(1, 2), max_tokens=1, **kept))
        rig.run(*(make_add(i, random_prompt(5 * i, i), max_tokens=2, **kept) for i in range(3, 6)))
    assert launched == known
    assert max(Counter(name for name, *_ in known).values()) == 1, "none is made twice"
    assert len(known) > 10
