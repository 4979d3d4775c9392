"""What only a machine with a GPU has is asked for in one folder alone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
FOLDERS = ("shared", "frontend", "worker", "detok", "deploy", "jetflock")
HERE = ROOT / "worker" / "engine" / "cuda"
OF_GPUS = re.compile(r"^\s*(import|from) (triton|flashinfer)\b|torch\.cuda\b", re.MULTILINE)


def test_only_the_cuda_folder_knows_gpus() -> None:
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 300
    found = {path for path in sources if OF_GPUS.search(path.read_text())}
    assert found
    assert [str(path) for path in found if HERE not in path.parents] == []
