"""Which GGUF file is meant, by a folder that holds some or by a repository of the hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from shared.errors import ConfigError
from shared.gguf.gguf_model import holds_gguf, part_names
from shared.gguf.metadata import CONFIG_SECTION

_NUM_SHOWN = 12


def gguf_file_at(path: Path) -> Path | None:
    """The file itself, or the only one of a folder that has no other weights; None: neither.

    Raises ConfigError for a folder that holds several, and for a checkpoint that is made of one.
    """
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    if not path.is_dir() or not holds_gguf(path) or _is_made(path):
        return None
    return path / only_model([file.name for file in path.glob("*.gguf")], str(path))


def only_model(names: Sequence[str], where: str) -> str:
    """The first file of the one model among them. Raises ConfigError where there are several."""
    found = first_parts(names)
    if len(found) == 1:
        return found[0]
    raise ConfigError(f"{where} holds {len(found)} GGUF files, {_listed(found)}: name one of them")


def chosen_model(names: Sequence[str], wanted: str, where: str) -> str:
    """The first file of the one that is called `wanted`, or that is quantised so: `Q4_K_M`.

    Raises ConfigError.
    """
    found = fitting_models(names, wanted)
    if len(found) == 1:
        return found[0]
    shown = _listed(found or first_parts(names)) or "none"
    raise ConfigError(f"{where} has {len(found) or 'no'} GGUF files of {wanted!r}; it has {shown}")


def fitting_models(names: Sequence[str], wanted: str) -> list[str]:
    """The first files of those that are called `wanted`, or else that are quantised so."""
    found = first_parts(names)
    exact = [name for name in found if wanted in (name, name.rpartition("/")[2])]
    return exact or [name for name in found if _has_tag(name, wanted)]


def first_parts(names: Sequence[str]) -> list[str]:
    """One file for each model among them; what holds the vision of another is left out."""
    bare = {name: name.rpartition("/")[2] for name in names if name.endswith(".gguf")}
    return sorted(
        name
        for name, file in bare.items()
        if part_names(file)[0] == file and not file.startswith("mmproj")
    )


def _has_tag(name: str, wanted: str) -> bool:
    """Whether it stands between dashes or dots, as in `Qwen3-8B-Q4_K_M.gguf`, in any case."""
    parts = name.rpartition("/")[2].upper().replace(".", "-").split("-")
    tag = wanted.upper().split("-")
    return any(parts[idx : idx + len(tag)] == tag for idx in range(len(parts)))


def _is_made(path: Path) -> bool:
    """Whether `checkpoint_folder` has made it of a GGUF file."""
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and CONFIG_SECTION in config


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more
