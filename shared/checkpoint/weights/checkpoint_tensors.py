"""The safetensors files of a checkpoint's folder: those that its index names, or a single one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shared.checkpoint.json_file import read_json
from shared.checkpoint.weights.safetensors_file import SafetensorsFile, TensorHeader
from shared.errors import ConfigError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class CheckpointTensors:
    """All heads, checked; and which file each tensor is read from."""

    folder: Path
    files: dict[str, SafetensorsFile]  # by file name
    file_of_tensor: dict[str, str]
    headers: dict[str, TensorHeader]  # by the tensors' names

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises ConfigError for files that are missing, damaged, or not as the index says."""
        index = folder / INDEX_FILE
        if not index.exists():
            if not (folder / SINGLE_FILE).exists():
                raise ConfigError(f"the checkpoint in {folder} has no {SINGLE_FILE}")
            file = SafetensorsFile.read(folder / SINGLE_FILE)
            of_single = dict.fromkeys(file.tensors, SINGLE_FILE)
            return cls(folder, {SINGLE_FILE: file}, of_single, file.tensors)
        file_of_tensor = _read_index(index)
        names = sorted(set(file_of_tensor.values()))
        _check_all_there(folder, names)
        files = {name: SafetensorsFile.read(folder / name) for name in names}
        for tensor, name in file_of_tensor.items():
            if tensor not in files[name].tensors:
                raise ConfigError(f"{index} says that {tensor!r} is in {name}, which has it not")
        headers = {tensor: files[name].tensors[tensor] for tensor, name in file_of_tensor.items()}
        return cls(folder, files, file_of_tensor, headers)

    @property
    def place(self) -> str:
        return str(self.folder)

    def read_bytes(self, name: str) -> bytes:
        """A tensor as it is stored. Raises ConfigError when it cannot be read."""
        return self.files[self.file_of_tensor[name]].read_bytes(name)


def _read_index(index: Path) -> dict[str, str]:
    """Names of files by those of tensors."""
    weight_map = read_json(index, dict).get("weight_map")
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


def _check_all_there(folder: Path, names: list[str]) -> None:
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        more = f", as are {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(
            f"{folder / INDEX_FILE} names {missing[0]}, which is missing{more}; download the "
            "model again"
        )
