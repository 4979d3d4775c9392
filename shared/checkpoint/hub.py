"""Models of the Hugging Face hub: fetched into its cache, or found there.

A GGUF file is named after its repository: `owner/name:file.gguf`, or by how it is quantised, as in
`owner/name:Q4_K_M`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.checkpoint.mistral_params import PARAMS_FILE
from shared.errors import ConfigError
from shared.gguf.gguf_choice import chosen_model, first_parts, fitting_models
from shared.gguf.gguf_model import part_names
from shared.machine.installation import install_command

# What a checkpoint is read from; and the part of it that tells whether it can be served.
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "*.txt")
# In Mistral's own layout: where there are others, the same weights again.
_TWICE = ("consolidated*.safetensors",)
_FILES_BUT_WEIGHTS = tuple(pattern for pattern in _FILES if pattern != "*.safetensors")


def is_hub_id(model: str) -> bool:
    """`owner/name`, with or without a GGUF file of it, and nothing that is here."""
    is_path = Path(model).expanduser().exists() or model.startswith((".", "/", "~"))
    return not is_path and model.partition(":")[0].count("/") == 1


def names_gguf(model: str) -> bool:
    """Whether a hub id names a GGUF file of its repository."""
    return ":" in model


def fetch(model: str) -> Path:
    """What a hub id names, downloaded where it is not there yet: a folder, or a GGUF file.

    Raises ConfigError.
    """
    repository, _, wanted = model.partition(":")
    if wanted:
        return _fetch_gguf(repository, wanted)
    folder = _download(repository, _FILES)
    if (folder / PARAMS_FILE).is_file() and not any(folder.glob("model*.safetensors*")):
        folder = _download(repository, _FILES, without=())
    if not _has_config(folder) or not any(folder.glob("*.safetensors")):
        _refuse_unnamed_gguf(repository)
    return _checked(repository, folder)


def fetch_all_but_weights(model: str) -> Path:
    """What tells of a model, a few megabytes of it. Raises ConfigError."""
    folder = _download(model, _FILES_BUT_WEIGHTS)
    if not _has_config(folder):
        _refuse_unnamed_gguf(model)
    return _checked(model, folder)


def find_fetched(model: str) -> Path | None:
    """What a hub id names, if it was downloaded, whole or not; None when it is not here.

    Raises ConfigError for a name that fits several GGUF files.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError:
        return None
    repository, _, wanted = model.partition(":")
    try:
        # No patterns: whichever files are here, that others of the repository are not is no matter.
        folder = Path(snapshot_download(repository, local_files_only=True, allow_patterns=[]))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    if not wanted:
        return folder
    names = [str(file.relative_to(folder)) for file in folder.rglob("*.gguf")]
    found = fitting_models(names, wanted)
    if not found:
        return None
    return folder / chosen_model(names, wanted, f"{repository} on this machine")


def _fetch_gguf(repository: str, wanted: str) -> Path:
    """The first of its files. Raises ConfigError."""
    first = chosen_model(_file_names(repository), wanted, repository)
    parent, slash, name = first.rpartition("/")
    return _download(repository, [f"{parent}{slash}{part}" for part in part_names(name)]) / first


def _refuse_unnamed_gguf(repository: str) -> None:
    """Raises ConfigError when it holds GGUF files: which of them was meant is not known."""
    found = first_parts(_file_names(repository))
    if found:
        raise ConfigError(
            f"the repository {repository!r} holds GGUF files; name one, as in "
            f"{repository}:{found[0]}"
            + (f" (it has {len(found)}, among them {', '.join(found[:6])})" if found[1:] else "")
        )


def _checked(repository: str, folder: Path) -> Path:
    if not _has_config(folder):
        raise ConfigError(f"the repository {repository!r} has no config.json: no model to serve")
    return folder


def _has_config(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", PARAMS_FILE))


def _file_names(repository: str) -> list[str]:
    try:
        from huggingface_hub import HfApi
    except ImportError as exc:
        raise _no_client(repository) from exc
    try:
        return HfApi().list_repo_files(repository)
    except Exception as exc:  # the hub client raises errors of several libraries
        raise _no_answer(repository, exc) from exc


def _download(repository: str, patterns: Sequence[str], without: Sequence[str] = _TWICE) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as exc:
        raise _no_client(repository) from exc
    try:
        return Path(
            snapshot_download(
                repository, allow_patterns=list(patterns), ignore_patterns=list(without)
            )
        )
    except Exception as exc:  # the hub client raises errors of several libraries
        raise _no_answer(repository, exc) from exc


def _no_client(model: str) -> ConfigError:
    return ConfigError(
        f"{model!r} is a hub id, and the client of the hub is not installed: "
        f"{install_command('worker')}"
    )


def _no_answer(model: str, exc: Exception) -> ConfigError:
    return ConfigError(
        f"cannot download {model!r} from the hub ({type(exc).__name__}: {exc}); "
        "give a folder instead, or check the name and the network"
    )
