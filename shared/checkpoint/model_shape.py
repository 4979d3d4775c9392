"""What lies at a path that is no checkpoint of ours: named, with what to give instead."""

from __future__ import annotations

from pathlib import Path

_WANTED = (
    "give a folder in Hugging Face format (config.json, *.safetensors), a GGUF file, or a hub id"
)


def why_no_checkpoint(path: Path) -> str:
    """A sentence on a file, on nothing, or on a folder without config.json."""
    if path.is_file():
        return _of_file(path)
    if not path.is_dir():
        return f"{path} is no folder; {_WANTED}"
    kind = _kind_of_folder(path)
    return f"{path} {kind or 'has no config.json'}; {_WANTED}"


def why_no_weights(path: Path) -> str:
    """A sentence on a folder that has config.json and no *.safetensors."""
    for pattern in ("*.bin", "*.pth", "*.pt"):
        if any(path.glob(pattern)):
            return (
                f"{path} has its weights as {pattern}, which may run code when they are read; "
                "take a version of the model with *.safetensors"
            )
    if any(path.glob("*.safetensors.*")) or any(path.glob("*.incomplete")):
        return f"the weights (*.safetensors) in {path} are not complete; download them again"
    return f"there are no weights (*.safetensors) in {path}; is it complete?"


def _of_file(path: Path) -> str:
    if path.suffix == ".safetensors":
        return f"{path} is one file of weights; give its folder, which has config.json, too"
    return f"{path} is a file; {_WANTED}"


def _kind_of_folder(path: Path) -> str:
    """Empty for one that looks like nothing known."""
    if (path / "adapter_config.json").is_file():
        return "is a LoRA adapter: serve its base model with --lora NAME=PATH"
    if (path / "model_index.json").is_file():
        return "is a pipeline of diffusers, which makes images"
    if (path / "manifests").is_dir() and (path / "blobs").is_dir():
        return "is Ollama's store: link its largest blob to a name that ends in .gguf"
    if (path / "snapshots").is_dir():
        return "is the hub's cache of a model: give its id, or a folder in its snapshots"
    if any(path.glob("*.pth")):
        return "has its weights as *.pth, which may run code when they are read"
    if nested := sorted(each.parent.name for each in path.glob("*/config.json")):
        return f"has no config.json, but its folder {nested[0]} has one"
    return ""
