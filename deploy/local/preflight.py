"""What can be known to be wrong before anything is started: each in one sentence with a remedy."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from deploy.local.ports import check_port
from deploy.local.serve_config import ServeConfig
from deploy.local.terminal import Terminal
from shared.errors import ConfigError
from shared.model_files import ModelFiles, is_hub_id, resolve_model

_MODULES_OF_EXTRA = {
    "frontend": ("starlette", "uvicorn", "jinja2", "tokenizers"),
    "worker": ("torch", "safetensors", "transformers"),
}


def check_extras() -> None:
    """Raises ConfigError when a role's libraries are not installed."""
    for extra, modules in _MODULES_OF_EXTRA.items():
        for module in modules:
            if importlib.util.find_spec(module) is None:
                raise ConfigError(
                    f"the {extra} needs the Python package {module!r}, which is not installed: "
                    "pip install 'jetflock[serve]'"
                )


def check_ports(config: ServeConfig) -> None:
    """Raises ConfigError when one is taken."""
    check_port(config.host, config.port, "--port")
    if config.has_own_nats:
        check_port("127.0.0.1", config.nats_port, "--nats-port")


def tell_of_download(model: str, terminal: Terminal) -> None:
    """The hub's own bars tell of bytes and time left; without a terminal a sentence has to do."""
    if not is_hub_id(model):
        return
    terminal.say(f"fetching {model} from the hub; what is there already is kept and used")
    if not terminal.is_interactive:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read at its import


def find_model(
    model: str,
    *,
    needs_weights: bool,
    has_dummy_weights: bool = False,
    max_context_len: int | None = None,
) -> ModelFiles:
    """The checkpoint, downloaded if it is a hub id. Raises ConfigError when it cannot be read."""
    path = resolve_model(model).absolute()
    check_readable(path)
    if needs_weights and not any(path.glob("*.safetensors")):
        raise ConfigError(f"there are no weights (*.safetensors) in {path}; is it complete?")
    files = ModelFiles.read(
        path, has_dummy_weights=has_dummy_weights, max_context_len=max_context_len
    )
    _ = files.max_context_len, files.vocab_size  # refused now rather than in four processes
    return files


def check_readable(path: Path) -> None:
    """Raises ConfigError when this user may not read all of it."""
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"cannot read the model folder {path}: check its permissions")
    for file in sorted(path.iterdir()):
        if file.is_file() and not os.access(file, os.R_OK):
            raise ConfigError(f"cannot read {file}: check its permissions")
