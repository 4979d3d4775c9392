"""Whether weights can be served, as far as the heads of their files tell."""

from __future__ import annotations

from pathlib import Path

from shared.checkpoint.formats.decoder_shapes import decoder_shapes
from shared.checkpoint.formats.quantization_files import read_quantization
from shared.checkpoint.formats.stored_heads import StoredHeads, text_names
from shared.checkpoint.json_file import read_json
from shared.checkpoint.weights.checkpoint_tensors import CheckpointTensors
from shared.checkpoint.weights.weight_files import check_weights
from shared.gguf.gguf_model import holds_gguf


def check_served_weights(path: Path) -> None:
    """Raises ConfigError, as a worker does, for files that are damaged, quantised by a tool that we
    do not know, or without a word, and for tensors of other shapes or types than their format and
    config.json say.
    """
    check_weights(path)
    quantization = read_quantization(path)
    if holds_gguf(path):
        return
    heads = CheckpointTensors.read(path)
    stored = StoredHeads.of(text_names(path, heads) or heads, quantization)
    for name, shape in decoder_shapes(read_json(path / "config.json", dict)):
        stored.find(name, shape)
