"""Files of weights: all there, and each as long as its own head says."""

from __future__ import annotations

from pathlib import Path

from shared.checkpoint.model_shape import why_no_weights
from shared.checkpoint.weights.checkpoint_tensors import INDEX_FILE, CheckpointTensors
from shared.errors import ConfigError
from shared.gguf.gguf_model import GgufModel, holds_gguf


def check_weights(path: Path) -> tuple[int, int]:
    """Returns the number of files, and their bytes. Raises ConfigError."""
    if holds_gguf(path):
        parts = GgufModel.read(min(path.glob("*.gguf"))).paths
        return len(parts), sum(part.stat().st_size for part in parts)
    if not any(path.glob("*.safetensors")) and not (path / INDEX_FILE).exists():
        raise ConfigError(why_no_weights(path))
    files = CheckpointTensors.read(path).files.values()
    return len(files), sum(file.num_bytes for file in files)
