"""Reading safetensors files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from worker.engine.formats.safetensors_files import SafetensorsFiles

NUM_VALUES = 1 << 22


def test_what_was_read_is_no_longer_mapped_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({name: torch.arange(NUM_VALUES) for name in "abc"}, path)
    with SafetensorsFiles(tmp_path) as files:
        tensors = [files.get(name) for name in "abc"]
        assert resident_bytes_of(path) < tensors[0].nbytes / 4
        assert all(torch.equal(tensor, torch.arange(NUM_VALUES)) for tensor in tensors)
        assert torch.equal(files.get("b"), tensors[1])


def resident_bytes_of(path: Path) -> int:
    """Of a mapped file, in this process."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *values = line.split()
        if not key.endswith(":"):
            is_ours = line.endswith(str(path))
        elif is_ours and key == "Rss:":
            total += int(values[0]) << 10
    return total
