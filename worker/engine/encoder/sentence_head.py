"""From the hidden states of whole texts to one vector each, as sentence-transformers does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn import functional

from shared.checkpoint.sentence_modules import FIRST, LAST, MEAN, MOST, DenseModule, SentenceModules
from shared.errors import ConfigError
from shared.protocol.sampling import PoolingKind
from worker.engine.models.dummy_weights import fill_with_noise
from worker.engine_link.engine_config import LoadFormat

# Of [num_tokens, hidden_size] float32.
_POOLS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    MEAN: lambda rows: rows.mean(dim=0),
    FIRST: lambda rows: rows[0],
    LAST: lambda rows: rows[-1],
    MOST: lambda rows: rows.amax(dim=0),
}
_MODE_OF_KIND = {PoolingKind.MEAN: MEAN, PoolingKind.LAST: LAST}


class PooledText(NamedTuple):
    """One of several texts that are computed together."""

    num_tokens: int
    kind: PoolingKind  # ENCODED: as the model's files say


class DenseLayer(NamedTuple):
    """A linear layer, and what becomes of its outputs."""

    weight: torch.Tensor  # [out_features, in_features] float32, on the model's device
    bias: torch.Tensor | None  # [out_features]
    has_tanh: bool

    @classmethod
    def load(cls, module: DenseModule, load_format: LoadFormat, device: torch.device) -> Self:
        """Raises ConfigError."""
        shapes: dict[str, tuple[int, ...]] = {
            "linear.weight": (module.out_features, module.in_features)
        }
        if module.has_bias:
            shapes["linear.bias"] = (module.out_features,)
        if load_format == "dummy":
            tensors = {
                name: fill_with_noise(f"{module.path.name}.{name}", torch.empty(shape))
                for name, shape in shapes.items()
            }
        else:
            tensors = _stored(module, shapes)
        on_device = {name: each.float().to(device) for name, each in tensors.items()}
        return cls(
            on_device["linear.weight"], on_device.get("linear.bias"), module.activation == "Tanh"
        )

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.linear(x, self.weight, self.bias)
        return x.tanh() if self.has_tanh else x


class SentenceHead:
    """A pooling, and the linear layers behind it. In float32."""

    def __init__(self, mode: str, layers: Sequence[DenseLayer]) -> None:
        self._mode = mode
        self._layers = layers

    @classmethod
    def load(cls, modules: SentenceModules, load_format: LoadFormat, device: torch.device) -> Self:
        """Raises ConfigError."""
        (mode,) = modules.modes
        return cls(mode, [DenseLayer.load(each, load_format, device) for each in modules.dense])

    def vectors(
        self,
        hidden: torch.Tensor,  # [num_texts, num_tokens, hidden_size]
        texts: Sequence[PooledText],
    ) -> torch.Tensor:
        """[num_texts, num_dimensions] float32; padding, behind a text's tokens, is left out."""
        pooled = torch.stack(
            [
                _POOLS[_MODE_OF_KIND.get(text.kind, self._mode)](rows[: text.num_tokens].float())
                for rows, text in zip(hidden, texts, strict=True)
            ]
        )
        for layer in self._layers:
            pooled = layer.apply(pooled)
        return pooled


def _stored(module: DenseModule, shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    path = module.path / "model.safetensors"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as exc:
        raise ConfigError(f"cannot read {path}: {exc}") from exc
    found = {name: tuple(each.shape) for name, each in tensors.items()}
    if found != shapes:
        raise ConfigError(f"{path} has tensors {found}, its config.json says {shapes}")
    return tensors
