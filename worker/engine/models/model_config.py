"""What the engine has to know of any model, and the reader of a checkpoint's JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import torch

from shared.checkpoint.stored_format import MadeFormat
from shared.errors import ConfigError
from shared.protocol.sight_card import SightCard
from shared.protocol.sound_card import SoundCard
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.layers.state_layer import StateLayer
from worker.engine.models.vision.tower_config import TowerConfig

_MAX_INTEGER = (1 << 31) - 1

V = TypeVar("V")


class CodedValues(NamedTuple):
    """Values of weights, and how many bits each has in codes, scales included."""

    num_values: int
    bits: float


class ModelStage(NamedTuple):
    """Layers [begin, end) of a model, in a process of their own.

    Before the first of all layers it has the embeddings, behind the last one norm and head.
    """

    begin: int
    end: int
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Known before weights are read. Each kind of model adds its own."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_parameters: int  # tied embeddings count once
    attention_layers: tuple[AttentionLayer, ...]  # one for each layer of the KV pool
    state_layers: tuple[StateLayer, ...] = ()  # one for each that keeps a state in its place
    max_context_len: int  # by default
    max_context_limit: int  # at most; more than the default where positions can be stretched
    num_labels: int = 1  # of a classifier
    stored_dtype: str  # of the checkpoint: "float32", "bfloat16", "float16"
    eos_token_ids: tuple[int, ...]
    unread_prefixes: tuple[str, ...] = ()  # of tensors that are of no use here
    unread_parts: tuple[str, ...] = ()  # the same, of names with a dot before them
    sight: SightCard | None = None  # None: it takes no images
    sound: SoundCard | None = None  # None: its chats take no audio
    tower: TowerConfig | None = None  # None: it has none, or the model is computed with it
    quantization: str = ""  # of the stored weights, for people; empty: there is none
    # Of its projections, from the time they are loaded; of a mixture of its experts alone.
    made_format: MadeFormat | None = None
    num_expert_values: int = 0  # of weights that our C++ can multiply in their codes by themselves
    coded_values: tuple[CodedValues, ...] = ()  # that it may multiply in codes, of all weights
    has_coded_table: bool = False  # embeddings are among them
    stage: ModelStage | None = None  # of a larger model, whose other layers are elsewhere

    @property
    def begins_text(self) -> bool:
        """Whether its first layer is given embeddings."""
        return self.stage is None or self.stage.is_first

    @property
    def ends_text(self) -> bool:
        """Whether its last layer gives what logits are made of."""
        return self.stage is None or self.stage.is_last

    @property
    def num_outputs(self) -> int:
        """The outputs of its head: tokens that may follow, or the labels of a classifier."""
        return self.num_labels if is_classifier(self.architecture) else self.vocab_size

    @property
    def state_bytes(self) -> int:
        """The bytes of a request, however long it is."""
        return sum(layer.num_bytes for layer in self.state_layers)

    def within(self, max_context_len: int | None) -> Self:
        """Itself, for texts up to this length; None: up to its own."""
        return self

    def cross_bytes(self, dtype: torch.dtype) -> int:
        """The bytes of a request: keys and values of what it hears, however much it says."""
        return 0

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """The bytes of keys and values in `dtype`."""
        return KVLayout.of(self.attention_layers, dtype, page_size=1).bytes_per_token


def is_classifier(architecture: str) -> bool:
    """Whether its head says something of the whole text."""
    return architecture.endswith("ForSequenceClassification")


class NotFused(ConfigError):
    """The fused decoder does not compute this; where transformers may, it does."""


class ConfigFile:
    """A JSON object of a checkpoint; what is missing or of the wrong type is told by its name."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Raises ConfigError."""
        try:
            values = json.loads(path.read_text())
        except OSError as exc:
            raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise ConfigError(f"{path} is not JSON: {exc}") from exc
        if not isinstance(values, dict):
            raise ConfigError(f"{path} is not a JSON object")
        return cls(path, values)

    @property
    def architecture(self) -> str:
        """The class of its model. Raises ConfigError."""
        names = self.get("architectures", [])
        if not isinstance(names, list) or len(names) != 1:
            raise ConfigError(f"{self.path}: 'architectures' must name one, not {names!r}")
        return str(names[0])

    def renamed(self, names: Mapping[str, str]) -> ConfigFile:
        """The same with values that it has by other names: ours, and its own."""
        others = {ours: self._values[own] for ours, own in names.items() if own in self._values}
        return ConfigFile(self.path, {**self._values, **others})

    def with_heads_of_width(self, num_kv_heads: int | None = None) -> ConfigFile:
        """The same, whatever else it says, for a family whose heads share hidden_size, each with
        keys and values of its own, or all with `num_kv_heads` of them.
        """
        num_heads = self.integer("num_attention_heads")
        return self.replaced(
            head_dim=self.integer("hidden_size") // num_heads,
            num_key_value_heads=num_kv_heads or num_heads,
        )

    def replaced(self, **values: Any) -> ConfigFile:
        """The same with these, whatever the file says."""
        return ConfigFile(self.path, {**self._values, **values})

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
            raise ConfigError(f"{self.path}: '{name}' must be {kind}, not {value!r}")
        if value > _MAX_INTEGER:
            raise ConfigError(f"{self.path}: '{name}' is {value}, more than any model has")
        return value

    def optional_integer(self, name: str, default: int | None) -> int | None:
        return None if self.get(name, default) is None else self.integer(name, default)

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{self.path}: '{name}' must be a number, not {value!r}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name, None) is None else self.number(name)

    def positive_number(self, name: str, default: float | None = None) -> float:
        value = self.number(name, default)
        if not 0.0 < value < float("inf"):
            raise ConfigError(f"{self.path}: '{name}' must be a positive number, not {value!r}")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.path}: '{name}' must be true or false, not {value!r}")
        return value

    def by_layer(
        self, name: str, words: object, known: Mapping[Any, V], num_layers: int
    ) -> list[V]:
        """What `known` has for the word of each layer, where `name` is to have such a list."""
        if (
            not isinstance(words, list)
            or len(words) != num_layers
            or not all(isinstance(each, str | int) and each in known for each in words)
        ):
            told = " or ".join(map(str, known))
            raise ConfigError(
                f"{self.path}: {name!r} must say {told} for each of {num_layers} layers, "
                f"not {words!r}"
            )
        return [known[each] for each in words]

    def of_each_layer(self, num_layers: int) -> list[ConfigFile]:
        """What `per_layer_config` has of a layer, by number, which may begin with zeros; or all."""
        unlike = self.get("per_layer_config", {})
        of_layers = {int(name): ConfigFile(self.path, values) for name, values in unlike.items()}
        return [of_layers.get(layer_id, self) for layer_id in range(num_layers)]

    def section(self, name: str) -> ConfigFile | None:
        """A nested object."""
        value = self.get(name, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConfigError(f"{self.path}: '{name}' must be an object, not {value!r}")
        return ConfigFile(self.path, value)

    def get(self, name: str, default: Any) -> Any:
        """A null counts as missing."""
        value = self._values.get(name)
        return default if value is None else value

    def __contains__(self, name: str) -> bool:
        """Also of a null."""
        return name in self._values

    def refuse(self, name: str, *allowed: Any) -> None:
        """Raises ConfigError when a feature that we lack is asked for."""
        value = self.get(name, None)
        if value is not None and value not in allowed:
            raise ConfigError(f"{self.path}: {name}={value!r} is not supported")


def token_ids_of(config: ConfigFile, name: str) -> tuple[int, ...] | None:
    """One id or a list of them; None when the file does not say."""
    value = config.get(name, None)
    if value is None:
        return None
    token_ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) for token_id in token_ids):
        raise ConfigError(f"{config.path}: '{name}' must be token ids, not {value!r}")
    return tuple(token_ids)
