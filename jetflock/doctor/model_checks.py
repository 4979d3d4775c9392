"""A model's files: whole, readable, supported, and small enough for this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deploy.local.preflight import check_readable
from jetflock.doctor.finding import Finding, fail, ok, warn
from jetflock.hub.engine_report import EngineSilent, engine_reports
from shared.checkpoint.hub import find_fetched, is_hub_id
from shared.checkpoint.model_files import ModelFiles, local_checkpoint
from shared.checkpoint.weights.weight_files import check_weights
from shared.errors import ConfigError
from shared.machine.installation import install_command

_AGAIN = "download the checkpoint again"


def model_findings(model: str) -> Iterator[Finding]:
    """The findings about a folder, or a hub id that has been downloaded."""
    try:
        path = _folder(model)
    except ConfigError as exc:
        yield fail(
            "model", str(exc), "give a folder in Hugging Face format, a GGUF file or a hub id"
        )
        return
    if path is None:
        remedy = f"jetflock serve {model} downloads it; jetflock pull {model} only fetches it"
        yield warn("model", f"{model} is not on this machine", remedy)
        return
    yield from _folder_findings(path)


def _folder(model: str) -> Path | None:
    """None when it would have to be downloaded. Raises ConfigError."""
    path = Path(model).expanduser()
    if path.is_dir() or path.suffix == ".gguf":
        return path.absolute()
    if not is_hub_id(model):
        raise ConfigError(f"there is no folder {model}")
    return find_fetched(model)


def _folder_findings(path: Path) -> Iterator[Finding]:
    try:
        if path.is_dir():
            check_readable(path)
        path = local_checkpoint(path)
        files = ModelFiles.read(path)
        architectures = ", ".join(map(str, files.config.get("architectures") or ["unnamed"]))
        yield ok(
            "config.json",
            f"{architectures}, context of {files.max_context_len} tokens, "
            f"vocabulary of {files.vocab_size}",
        )
    except ConfigError as exc:
        yield fail("config.json", str(exc), _AGAIN)
        return
    yield _weights(path)
    yield from _tokenizer(files)
    yield from _engine(path)


def _weights(path: Path) -> Finding:
    try:
        num_files, num_bytes = check_weights(path)
    except ConfigError as exc:
        has_others = any(path.glob("*.bin")) or any(path.glob("*.pth"))
        remedy = "take a version of the model with *.safetensors" if has_others else _AGAIN
        return fail("weights", str(exc), remedy)
    return ok("weights", f"{num_files} files, {num_bytes / (1 << 30):.2f} GiB, complete")


def _tokenizer(files: ModelFiles) -> Iterator[Finding]:
    try:
        bundle = files.tokenizer_bundle()
        size = bundle.tokenizer().get_vocab_size()
    except ConfigError as exc:
        yield fail("tokenizer", str(exc), "add tokenizer.json")
        return
    except ModuleNotFoundError as exc:
        yield warn("tokenizer", f"not tried: {exc.name} is missing", install_command("detok"))
        return
    yield ok("tokenizer", f"{size} tokens")
    if bundle.chat_template is None:
        yield warn(
            "chat template",
            "there is none: /v1/chat/completions refuses, /v1/completions works",
            "add chat_template.jinja, if the model was made for chats",
        )
    else:
        yield ok("chat template", f"{len(bundle.chat_template)} characters")


def _engine(path: Path) -> Iterator[Finding]:
    """What the engine says of it."""
    try:
        [report] = engine_reports(path)
    except EngineSilent as exc:
        yield fail("engine", exc.problem, exc.remedy)
        return
    if report.refusal:
        yield fail("engine", report.refusal, "docs/models.md lists what is served")
        return
    yield ok("engine", f"{report.architecture} by {report.computed_by} in {report.dtype}")
    if report.shortage:
        remedy = "a machine with more memory, or a smaller model"
        yield fail("memory for it", report.shortage, remedy)
    else:
        yield ok("memory for it", report.need)
