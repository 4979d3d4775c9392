"""What can be known to be wrong before anything is started: each in one sentence with a remedy."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from deploy.local.gpu_share import num_visible_gpus
from deploy.local.ports import check_port
from deploy.local.serve_config import ServeConfig
from deploy.local.terminal import Terminal
from shared.checkpoint.formats.served_weights import check_served_weights
from shared.checkpoint.hub import is_hub_id
from shared.checkpoint.model_files import ModelFiles, resolve_model, weight_files
from shared.checkpoint.model_options import PLAIN, ModelOptions
from shared.checkpoint.model_shape import why_no_weights
from shared.checkpoint.recurrent_text import MAX_CONTEXT_LEN, is_endless
from shared.errors import ConfigError
from shared.machine.gpu_driver import TorchBuild, visible_driver, why_not_cuda
from shared.machine.installation import install_command

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
                    f"{install_command('serve')}"
                )


def check_ports(config: ServeConfig) -> None:
    """Raises ConfigError when one is taken."""
    check_port(config.host, config.port, "--port")
    if config.has_own_nats:
        check_port("127.0.0.1", config.nats_port, "--nats-port")


def check_engine(config: ServeConfig) -> None:
    """Raises ConfigError for what no worker could run with on this machine."""
    config.check()
    if config.scripted or config.device == "cpu":
        return
    found = num_visible_gpus(os.environ)
    if config.device == "cuda":
        if found == 0:
            raise ConfigError(
                "--device cuda needs an NVIDIA GPU, and this machine shows no driver of one "
                "(nvidia-smi); --device cpu runs on the processor"
            )
        if (build := TorchBuild.installed()) is not None and build.cuda is None:
            raise ConfigError(
                f"--device cuda needs a torch that is built for CUDA, {build.version} is not; "
                f"install one, then {install_command('cuda')}"
            )
    check_cuda(os.environ)
    if found is not None and found < config.num_local_ranks and config.num_ranks > 1:
        flag = config.divided_by.replace("=", " ")
        raise ConfigError(
            f"--{flag} needs {config.num_local_ranks} NVIDIA GPUs, this machine shows "
            f"{found}; with --device cpu it can be tried without"
        )


def check_cuda(environ: Mapping[str, str], root: Path = Path("/")) -> None:
    """Raises ConfigError where there is a GPU that the installed torch cannot use: a model would
    run on the processor without a word.
    """
    driver, build = visible_driver(environ, root), TorchBuild.installed()
    if driver is None or build is None:
        return
    if (obstacle := why_not_cuda(driver, build)) is not None:
        raise ConfigError(str(obstacle))


def check_context(files: ModelFiles, wanted: int | None) -> None:
    """Raises ConfigError for a context that the model's positions do not reach."""
    own = replace(files, stretched_context_len=None).max_context_len
    limit = _stretched(files, own)
    if wanted is not None and limit is not None and wanted > limit:
        raise ConfigError(
            f"--max-context-len {wanted} is more than the {limit} tokens that "
            f"{files.path / 'config.json'} allows"
        )


def _stretched(files: ModelFiles, own: int) -> int | None:
    """How long a text may be with its rope; None when only the worker knows."""
    if is_endless(files.config):
        return MAX_CONTEXT_LEN
    text = files.config.get("text_config")
    config = text if isinstance(text, dict) else files.config
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, dict):
        return own
    match rope.get("rope_type", rope.get("type", "default")):
        case "default" | "linear" | "llama3":
            return own
        case _:
            return None


def announce_download(model: str, terminal: Terminal) -> None:
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
    options: ModelOptions = PLAIN,
    has_dummy_weights: bool = False,
) -> ModelFiles:
    """The checkpoint, downloaded if it is a hub id. Raises ConfigError when it cannot be read."""
    path = resolve_model(model).absolute()
    check_readable(path)
    if needs_weights and not weight_files(path):
        raise ConfigError(why_no_weights(path))
    if (template := options.template_source()) is not None:
        check_template(str(options.chat_template), template)
    files = ModelFiles.read(path, options=options, has_dummy_weights=has_dummy_weights)
    _ = files.max_context_len, files.vocab_size  # refused now rather than in four processes
    if needs_weights:
        check_served_weights(path)
    return files


def check_template(place: str, source: str) -> None:
    """Raises ConfigError for a chat template that no frontend could use."""
    from frontend.models.chat_template import ChatTemplate  # late: commands have no Jinja

    try:
        ChatTemplate(source, {})
    except ConfigError as exc:
        raise ConfigError(f"chat_template {place!r}: {exc}") from exc


def check_readable(path: Path) -> None:
    """Raises ConfigError when this user may not read all of it."""
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"cannot read the model folder {path}: check its permissions")
    for file in sorted(path.iterdir()):
        if file.is_file() and not os.access(file, os.R_OK):
            raise ConfigError(f"cannot read {file}: check its permissions")
