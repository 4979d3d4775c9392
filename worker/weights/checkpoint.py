"""A checkpoint on disk, as far as others must agree with it to take its place."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shared.checkpoint.model_files import ModelFiles, local_checkpoint
from shared.checkpoint.stored_format import MODELOPT_FILE, modelopt_config
from shared.checkpoint.weights.safetensors_file import SafetensorsFile
from shared.errors import ConfigError
from shared.gguf.gguf_model import GgufModel, holds_gguf
from shared.gguf.metadata import CONFIG_SECTION
from shared.protocol.model_cards import ModelCard

# Tell where a checkpoint comes from or how it is stored, not what it computes.
_FREE_KEYS = frozenset(
    {"_name_or_path", "transformers_version", "dtype", "torch_dtype", CONFIG_SECTION}
)
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is read without the weights themselves."""

    files: ModelFiles
    card: ModelCard
    shapes: str  # a hash of the names and shapes of all tensors; "" when there are no files

    @classmethod
    def read(cls, files: ModelFiles, model_name: str) -> Self:
        """Slow: off the event loop. Raises ConfigError."""
        return cls(files, files.card(model_name, files.tokenizer_bundle()), _shapes(files.path))

    @property
    def path(self) -> Path:
        return self.files.path

    @property
    def revision(self) -> str:
        return self.card.revision

    def check_unchanged(self) -> None:
        """Raises ConfigError when the files are not the ones that were read."""
        if self.shapes and self.files.revision != self.revision:
            raise ConfigError(
                f"{self.path} holds other weights than those that were loaded from it; write each "
                "checkpoint to a folder of its own"
            )

    def successor(self, model_path: str) -> Checkpoint:
        """The checkpoint at `model_path`, if it can take the place of this one.

        Slow: off the event loop. Raises ConfigError, which names what differs.
        """
        path = Path(model_path)
        if not path.is_absolute():
            raise ConfigError(f"model_path {model_path!r} is not absolute")
        try:
            path = local_checkpoint(path)
        except ConfigError as exc:
            raise ConfigError(f"model_path {model_path!r}: {exc}") from exc
        if not self.shapes:
            raise ConfigError("the worker has no weights from files: there is nothing to replace")
        other = Checkpoint.read(ModelFiles.read(path, options=self.files.options), self.card.name)
        self._check_replaced_by(other)
        return other

    def _check_replaced_by(self, other: Checkpoint) -> None:
        """Raises ConfigError."""
        ours, theirs = self.files.config, other.files.config
        for key in sorted((ours.keys() | theirs.keys()) - _FREE_KEYS):
            _check_same(other, key, ours.get(key, _ABSENT), theirs.get(key, _ABSENT))
        _check_same(other, MODELOPT_FILE, modelopt_config(self.path), modelopt_config(other.path))
        _check_same(other, "eos_token_id", self.card.eos_token_ids, other.card.eos_token_ids)
        if other.card.tokenizer_hash != self.card.tokenizer_hash:
            raise ConfigError(f"{other.path} has another tokenizer than the served model")
        if other.shapes != self.shapes:
            raise ConfigError(
                f"{other.path}: its tensors differ from the served model's in names or shapes"
            )


def _check_same(other: Checkpoint, key: str, ours: Any, theirs: Any) -> None:
    if ours != theirs:
        raise ConfigError(
            f"{other.path}: {key} is {_shown(theirs)}, the served model has {_shown(ours)}"
        )


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)


def _shapes(path: Path) -> str:
    shapes: dict[str, tuple[int, ...]] = {}
    if holds_gguf(path):
        blocks = GgufModel.read(min(path.glob("*.gguf"))).tensors
        shapes = {name: tensor.shape for name, tensor in blocks.items()}
    for file in sorted(path.glob("*.safetensors")):
        tensors = SafetensorsFile.read(file).tensors
        shapes |= {name: tensor.shape for name, tensor in tensors.items()}
    if not shapes:
        return ""
    return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()
