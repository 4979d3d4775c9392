"""Models of the Hugging Face hub: fetched into its cache, or found there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.errors import ConfigError
from shared.installation import install_command

# What a checkpoint is read from; and the part of it that tells whether it can be served.
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
_FILES_BUT_WEIGHTS = tuple(pattern for pattern in _FILES if pattern != "*.safetensors")


def is_hub_id(model: str) -> bool:
    """`owner/name`, and nothing that is here."""
    is_path = Path(model).expanduser().exists() or model.startswith((".", "/", "~"))
    return not is_path and model.count("/") == 1


def fetch(model: str) -> Path:
    """The folder of a hub id, downloaded where it is not there yet. Raises ConfigError."""
    return _fetch(model, _FILES)


def fetch_all_but_weights(model: str) -> Path:
    """What tells of a model, a few megabytes of it. Raises ConfigError."""
    return _fetch(model, _FILES_BUT_WEIGHTS)


def find_fetched(model: str) -> Path | None:
    """The folder of a hub id that was downloaded, whole or not; None when it is not here."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError:
        return None
    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _fetch(model: str, patterns: Sequence[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as exc:
        raise ConfigError(
            f"{model!r} is a hub id, and the client of the hub is not installed: "
            f"{install_command('worker')}"
        ) from exc
    try:
        folder = snapshot_download(model, allow_patterns=list(patterns))
    except Exception as exc:  # the hub client raises errors of several libraries
        raise ConfigError(
            f"cannot download {model!r} from the hub ({type(exc).__name__}: {exc}); "
            "give a folder instead, or check the name and the network"
        ) from exc
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(f"the repository {model!r} has no config.json: is it one of GGUF files?")
    return Path(folder)
