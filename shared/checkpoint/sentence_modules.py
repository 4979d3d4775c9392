"""What sentence-transformers' files say of the way from hidden states to one vector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shared.checkpoint.json_file import read_json
from shared.errors import ConfigError

MODULES_FILE = "modules.json"
MEAN, LAST, FIRST, MOST = "mean_tokens", "lasttoken", "cls_token", "max_tokens"
# As newer files name a mode, in one word.
_MODE_WORDS = {"mean": MEAN, "lasttoken": LAST, "cls": FIRST, "max": MOST}
_PREFIX = "pooling_mode_"
ACTIVATIONS = ("Identity", "Tanh")
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A linear layer behind the pooling."""

    path: Path  # of its folder
    in_features: int
    out_features: int
    has_bias: bool
    activation: str  # one of ACTIVATIONS

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ConfigError."""
        config = read_json(path / "config.json", dict)
        activation = str(config.get("activation_function", "")).rpartition(".")[2]
        if activation not in ACTIVATIONS:
            raise ConfigError(
                f"{path}/config.json: activation_function={config.get('activation_function')!r} "
                f"is not supported; supported is {' or '.join(ACTIVATIONS)}"
            )
        in_features, out_features = (
            _size(path, config, name) for name in ("in_features", "out_features")
        )
        return cls(path, in_features, out_features, bool(config.get("bias", True)), activation)


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """The modules behind the transformer: a pooling, linear layers, and a norm."""

    modes: tuple[str, ...]  # of the pooling, as its file names them, without their prefix
    dense: tuple[DenseModule, ...] = ()
    normalize: bool = True

    @classmethod
    def read(cls, path: Path, *, is_decoder: bool) -> Self:
        """What modules.json lists. Raises ConfigError for modules that we lack."""
        modules = read_json(path / MODULES_FILE, list)
        kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
        for kind in kinds:
            if kind not in _ORDER:
                raise ConfigError(
                    f"{path}/modules.json: a module of type {kind!r} is not supported"
                )
        if is_decoder and "Dense" in kinds:
            raise ConfigError(
                f"{path}/modules.json: a module of type 'Dense' is not supported behind a decoder"
            )
        if kinds != sorted(kinds, key=_ORDER.index) or kinds.count("Pooling") > 1:
            raise ConfigError(
                f"{path}/modules.json: modules in the order {', '.join(kinds)} are not supported"
            )
        if "Pooling" not in kinds:
            raise ConfigError(f"{path}/modules.json names no pooling")
        folders = [path / str(module.get("path", "")) for module in modules]
        return cls(
            _modes(folders[kinds.index("Pooling")] / "config.json"),
            tuple(
                DenseModule.read(folder)
                for kind, folder in zip(kinds, folders, strict=True)
                if kind == "Dense"
            ),
            normalize="Normalize" in kinds,
        )

    def mode_of(self, path: Path, supported: tuple[str, ...]) -> str:
        """The one way in which the tokens are pooled. Raises ConfigError for others."""
        if len(self.modes) == 1 and self.modes[0] in supported:
            return self.modes[0]
        named = ", ".join(_PREFIX + mode for mode in self.modes) or "no pooling mode"
        raise ConfigError(
            f"{path} asks for {named}; supported is "
            f"{' or '.join(_PREFIX + mode for mode in supported)}, alone"
        )


def _modes(config_path: Path) -> tuple[str, ...]:
    config = read_json(config_path, dict)
    if config.get("include_prompt") is False:
        raise ConfigError(f"{config_path}: include_prompt=false is not supported")
    word = config.get("pooling_mode")
    if word is not None:
        return (_MODE_WORDS.get(str(word), str(word)),)
    return tuple(
        key.removeprefix(_PREFIX)
        for key, value in config.items()
        if key.startswith(_PREFIX) and value
    )


def _size(path: Path, config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{path}/config.json: {name!r} must be a positive integer, not {value!r}")
    return value
