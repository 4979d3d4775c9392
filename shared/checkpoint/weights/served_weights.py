"""Whether weights can be served, as far as the heads of their files tell."""

from __future__ import annotations

from pathlib import Path

from shared.checkpoint.json_file import read_json
from shared.checkpoint.vision_text import has_unread_tower, text_tensor_name
from shared.checkpoint.weights.checkpoint_tensors import CheckpointTensors
from shared.checkpoint.weights.plain_tensors import NO_QUANTIZATION, check_plain
from shared.checkpoint.weights.quantization_sections import quantization_sections
from shared.checkpoint.weights.weight_files import check_weights
from shared.gguf.gguf_model import holds_gguf


def check_served_weights(path: Path) -> None:
    """Raises ConfigError for files that are damaged, quantised by a tool that we do not know, or
    quantised without a word.
    """
    check_weights(path)
    is_told = bool(quantization_sections(path))
    if is_told or holds_gguf(path):
        return
    headers = CheckpointTensors.read(path).headers
    if has_unread_tower(read_json(path / "config.json", dict)):
        names = {stored: text_tensor_name(stored) for stored in headers}
        headers = {name: headers[stored] for stored, name in names.items() if name is not None}
    check_plain(headers, str(path), NO_QUANTIZATION)
