"""The flag that names a LoRA adapter and its folder."""

from __future__ import annotations

from pathlib import Path

from shared.errors import ConfigError


def split_lora(text: str) -> tuple[str, Path]:
    """Raises ConfigError for what is not NAME=PATH."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise ConfigError(f"lora {text!r} is not NAME=PATH")
    return name, Path(path).expanduser().absolute()
