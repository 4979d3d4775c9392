"""The safetensors files of a checkpoint's folder: those that its index names, or a single one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from shared.checkpoint.json_file import read_json
from shared.checkpoint.weights.safetensors_file import SafetensorsFile, TensorHeader
from shared.errors import ConfigError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Of an index that we have made: by a tensor's name, what its file calls it, and, of projections
# whose heads rotate neighbouring rows, where Hugging Face's rotate two halves, the number of heads.
NAMES_SECTION, PAIRS_SECTION = "jetflock_stored_names", "jetflock_paired_heads"

T = TypeVar("T", str, int)


@dataclass(frozen=True, slots=True)
class CheckpointTensors:
    """All heads, checked; and which file each tensor is read from."""

    folder: Path
    files: dict[str, SafetensorsFile]  # by file name
    file_of_tensor: dict[str, str]
    headers: dict[str, TensorHeader]  # by the tensors' names
    stored_names: Mapping[str, str] = field(default_factory=dict)  # where files have others
    paired_heads: Mapping[str, int] = field(default_factory=dict)  # `PAIRS_SECTION`

    @classmethod
    def read(cls, folder: Path, single_file: str = SINGLE_FILE) -> Self:
        """Reads the file, or those that its index names. Raises ConfigError for files that are
        missing, damaged, or not as the index says.
        """
        index = folder / f"{single_file}.index.json"
        if not index.exists():
            if not (folder / single_file).exists():
                raise ConfigError(f"the checkpoint in {folder} has no {single_file}")
            file = SafetensorsFile.read(folder / single_file)
            of_single = dict.fromkeys(file.tensors, single_file)
            return cls(folder, {single_file: file}, of_single, file.tensors)
        values = read_json(index, dict)
        file_of_tensor = _weight_map(index, values)
        stored_names = _section(index, values, NAMES_SECTION, str)
        names = sorted(set(file_of_tensor.values()))
        _check_all_there(index, names)
        files = {name: SafetensorsFile.read(folder / name) for name in names}
        headers = {}
        for tensor, name in file_of_tensor.items():
            header = files[name].tensors.get(stored_names.get(tensor, tensor))
            if header is None:
                raise ConfigError(f"{index} says that {tensor!r} is in {name}, which has it not")
            headers[tensor] = header
        paired_heads = _section(index, values, PAIRS_SECTION, int)
        return cls(folder, files, file_of_tensor, headers, stored_names, paired_heads)

    @property
    def place(self) -> str:
        return str(self.folder)

    def read_bytes(self, name: str) -> bytes:
        """A tensor as it is stored. Raises ConfigError when it cannot be read."""
        return self.files[self.file_of_tensor[name]].read_bytes(self.stored_name(name))

    def stored_name(self, name: str) -> str:
        """What its file calls a tensor."""
        return self.stored_names.get(name, name)


def _weight_map(index: Path, values: dict[str, Any]) -> dict[str, str]:
    """Names of files by those of tensors."""
    weight_map = values.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{index} has no weight_map, which names a file for each tensor")
    for tensor, name in weight_map.items():
        # What is told of weights, and watched, are the files of the folder that end so.
        is_name = isinstance(name, str) and name.endswith(".safetensors")
        if not is_name or "/" in name or "\0" in name:
            raise ConfigError(
                f"{index}: {tensor!r} is said to be in {name!r}, which is no name of a "
                "*.safetensors file beside it"
            )
    return weight_map


def _section(index: Path, values: dict[str, Any], name: str, kind: type[T]) -> dict[str, T]:
    section = values.get(name, {})
    if not isinstance(section, dict) or not all(type(each) is kind for each in section.values()):
        raise ConfigError(
            f"{index}: {name!r} must be of names and {kind.__name__}, not {section!r}"
        )
    return section


def _check_all_there(index: Path, names: list[str]) -> None:
    missing = [name for name in names if not (index.parent / name).exists()]
    if missing:
        more = f", as are {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(
            f"{index} names {missing[0]}, which is missing{more}; download the model again"
        )
