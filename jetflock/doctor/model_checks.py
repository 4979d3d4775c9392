"""A model's files: whole, readable, supported, and small enough for this machine."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.local.preflight import check_readable
from jetflock.doctor.finding import Finding, fail, ok, warn
from shared.errors import ConfigError
from shared.json_file import read_json
from shared.model_files import ModelFiles

_INDEX = "model.safetensors.index.json"
_REPORT_S = 120.0
_MAX_HEADER_BYTES = 100 << 20


def model_findings(model: str) -> Iterator[Finding]:
    """Of a folder, or of a hub id that has been downloaded."""
    try:
        path = _folder(model)
    except ConfigError as exc:
        yield fail("model", str(exc), "give a folder in Hugging Face format, or a hub id")
        return
    if path is None:
        remedy = f"jetflock serve {model} downloads it; for the checks: hf download {model}"
        yield warn("model", f"{model} is not on this machine", remedy)
        return
    yield from _folder_findings(path)


def _folder(model: str) -> Path | None:
    """None when it would have to be downloaded. Raises ConfigError."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.exists() or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError(f"there is no folder {model}")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        return None
    try:
        return Path(snapshot_download(model, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _folder_findings(path: Path) -> Iterator[Finding]:
    try:
        check_readable(path)
        files = ModelFiles.read(path)
        architectures = ", ".join(map(str, files.config.get("architectures") or ["unnamed"]))
        yield ok(
            "config.json",
            f"{architectures}, context of {files.max_context_len} tokens, "
            f"vocabulary of {files.vocab_size}",
        )
    except ConfigError as exc:
        yield fail("config.json", str(exc), "download the checkpoint again")
        return
    yield _weights(path)
    yield from _tokenizer(files)
    yield from _engine(path)


def _weights(path: Path) -> Finding:
    remedy = "download the checkpoint again"
    try:
        names = _weight_files(path)
        if not names:
            if any(path.glob("*.bin")) or any(path.glob("*.pth")):
                remedy = "take a version of the model with *.safetensors"
            return fail("weights", f"{path} has no *.safetensors", remedy)
        num_bytes = sum(_check_weight_file(path / name) for name in names)
    except ConfigError as exc:
        return fail("weights", str(exc), remedy)
    return ok("weights", f"{len(names)} files, {num_bytes / (1 << 30):.2f} GiB, complete")


def _weight_files(path: Path) -> list[str]:
    """Those that the index names, or those that are there. Raises ConfigError."""
    if (path / _INDEX).is_file():
        weight_map = read_json(path / _INDEX, dict).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ConfigError(f"{path / _INDEX} has no weight_map")
        return sorted({str(name) for name in weight_map.values()})
    return sorted(file.name for file in path.glob("*.safetensors"))


def _check_weight_file(file: Path) -> int:
    """Its size, if that is what its head says. Raises ConfigError."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (header_len,) = struct.unpack("<Q", stream.read(8))
            if header_len > min(size, _MAX_HEADER_BYTES):
                raise ConfigError(f"{file.name} is cut, or no safetensors file")
            header: dict[str, Any] = json.loads(stream.read(header_len))
    except FileNotFoundError:
        raise ConfigError(f"{file.name} is missing") from None
    except (OSError, struct.error, ValueError) as exc:
        raise ConfigError(f"{file.name} cannot be read: {exc}") from exc
    header.pop("__metadata__", None)
    end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if (wanted := 8 + header_len + end) != size:
        raise ConfigError(f"{file.name} has {size} bytes, its head says {wanted}")
    return size


def _tokenizer(files: ModelFiles) -> Iterator[Finding]:
    try:
        bundle = files.tokenizer_bundle()
        size = bundle.tokenizer().get_vocab_size()
    except ConfigError as exc:
        yield fail("tokenizer", str(exc), "add tokenizer.json")
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
    """What the engine says of it: in a process of its own, since that imports torch."""
    argv = [sys.executable, "-m", "worker.engine.model_report", str(path)]
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            argv, capture_output=True, text=True, check=False, timeout=_REPORT_S
        )
    except subprocess.TimeoutExpired:
        yield fail("engine", f"does not answer in {_REPORT_S:g} s", "is the machine overloaded?")
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it died"])[-1]
        yield fail("engine", last, "pip install 'jetflock[worker]'")
        return
    report = json.loads(done.stdout)
    if report["refusal"]:
        yield fail("engine", report["refusal"], "docs/models.md lists what is served")
        return
    yield ok("engine", f"{report['architecture']} by {report['computed_by']} in {report['dtype']}")
    if report["shortage"]:
        remedy = "a machine with more memory, or a smaller model"
        yield fail("memory for it", report["shortage"], remedy)
    else:
        yield ok("memory for it", report["need"])
