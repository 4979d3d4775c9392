"""What a checkpoint's files say about the embeddings that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.checkpoint.json_file import read_json
from shared.errors import ConfigError
from shared.protocol.model_cards import EmbeddingCard
from shared.protocol.sampling import PoolingKind

_SIZE_KEYS = ("hidden_size", "n_embd", "d_model")
_MODE_KEYS = {
    "pooling_mode_lasttoken": PoolingKind.LAST,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
}


def is_embedder(path: Path) -> bool:
    """Whether it was trained for embeddings: sentence-transformers leaves a modules.json."""
    return (path / "modules.json").is_file()


def embedding_card(path: Path, config: dict[str, Any]) -> EmbeddingCard | None:
    """As sentence-transformers would embed, else the last token, normalised.

    None when config.json does not tell the size. Raises ConfigError for modules that we lack.
    """
    num_dimensions = next(
        (size for key in _SIZE_KEYS if isinstance(size := config.get(key), int)), None
    )
    if num_dimensions is None:
        return None
    pooling, normalize = PoolingKind.LAST, True
    if is_embedder(path):
        pooling, normalize = _read_modules(path)
    dimensions = config.get("matryoshka_dimensions")
    return EmbeddingCard(
        num_dimensions=num_dimensions,
        pooling=pooling,
        normalize=normalize,
        is_matryoshka=bool(config.get("is_matryoshka") or dimensions),
        matryoshka_dimensions=tuple(sorted(dimensions or ())),
    )


def _read_modules(path: Path) -> tuple[PoolingKind, bool]:
    """Pooling, and whether the vector is normalised."""
    modules = read_json(path / "modules.json", list)
    pooling: PoolingKind | None = None
    normalize = False
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        match kind:
            case "Transformer":
                pass
            case "Pooling":
                pooling = _pooling_kind(path / str(module.get("path", "")) / "config.json")
            case "Normalize":
                normalize = True
            case _:
                raise ConfigError(
                    f"{path}/modules.json: a module of type {kind!r} is not supported"
                )
    if pooling is None:
        raise ConfigError(f"{path}/modules.json names no pooling")
    return pooling, normalize


def _pooling_kind(config_path: Path) -> PoolingKind:
    config = read_json(config_path, dict)
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in _MODE_KEYS:
        named = ", ".join(modes) or "no pooling mode"
        supported = " or ".join(_MODE_KEYS)
        raise ConfigError(f"{config_path} asks for {named}; supported is {supported}, alone")
    if config.get("include_prompt") is False:
        raise ConfigError(f"{config_path}: include_prompt=false is not supported")
    return _MODE_KEYS[modes[0]]
