"""Streams beside each other, of which a layer computes one and corrects all, as Gemma 3n has them
(alternating updates: arXiv 2301.13310).
"""

from __future__ import annotations

import torch

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_config import AltupConfig, LayerInputsConfig
from worker.engine.models.layer_ops import LayerOps, activate
from worker.engine.models.model import ModelInput
from worker.engine.models.norms import moments, rms_norm
from worker.engine.models.shared_block import Layer

LEAST_SQUARE = 1e-5  # of the values of a stream, when it is brought to the length of the first


class AltupStreams:
    """Makes the streams of embeddings, and one of them again at the end."""

    def __init__(
        self, config: DecoderConfig, altup: AltupConfig, weights: DecoderWeights, ops: LayerOps
    ) -> None:
        size = config.hidden_size
        self._begins, self._ends = (
            [
                ops.projection(*weights.projection("model.", {f"{name}.{idx}": size}, size))
                for idx in range(altup.num_streams - 1)
            ]
            for name in ("altup_projections", "altup_unembed_projections")
        )

    def begin(self, embeddings: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] -> [num_tokens, num_streams, hidden_size]."""
        made = [_as_long_as(embeddings, each(embeddings)) for each in self._begins]
        return torch.stack([embeddings, *made], dim=1)

    def end(self, streams: torch.Tensor) -> torch.Tensor:
        """Their mean: [num_tokens, num_streams, hidden_size] -> [num_tokens, hidden_size]."""
        total = first = streams[:, 0].contiguous()
        for idx, each in enumerate(self._ends, start=1):
            total = total + _as_long_as(first, each(streams[:, idx].contiguous()))
        return total / streams.shape[1]


class AltupLayer:
    """A layer of one stream: the others are foretold before it, and corrected behind it."""

    def __init__(
        self,
        config: DecoderConfig,
        altup: AltupConfig,
        weights: DecoderWeights,
        layer_id: int,
        layer: Layer,
        ops: LayerOps,
    ) -> None:
        assert config.layer_inputs is not None, "its layers have inputs"
        self._altup, self._layer, self._eps = altup, layer, config.norm.eps
        self._inputs: LayerInputsConfig = config.layer_inputs
        num_streams, size = altup.num_streams, config.hidden_size
        prefix = f"model.layers.{layer_id}."
        read, inside = weights.reader.read, f"{prefix}altup."
        self._norm = read(f"{inside}router_norm.weight", size)
        self._input_norm = read(f"{prefix}post_per_layer_input_norm.weight", size)
        scale = read(f"{inside}correct_output_scale", size)
        self._scale = scale if altup.scales_inputs else None
        self._router, self._prediction, self._correction, self._gate, self._up = (
            ops.projection(*weights.projection(where, {name: num_outputs}, num_inputs))
            for where, name, num_outputs, num_inputs in (
                (inside, "modality_router", num_streams, size),
                (inside, "prediction_coefs", num_streams**2, num_streams),
                (inside, "correction_coefs", num_streams, num_streams),
                (prefix, "per_layer_input_gate", self._inputs.size, size),
                (prefix, "per_layer_projection", size, self._inputs.size),
            )
        )

    def forward(
        self,
        delta: torch.Tensor,
        residual: torch.Tensor,
        batch: ModelInput,
        attention: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the layer makes of its stream: [num_tokens, hidden_size]; and what was foretold of
        all, of `residual`: [num_tokens, num_streams, hidden_size]. Of `delta` nothing is left.
        """
        foretold = self._foretold(residual)
        active = foretold[:, self._altup.active].contiguous()
        added, stream = self._layer.forward(torch.zeros_like(active), active, batch, attention)
        return stream + added, foretold

    def end(
        self, delta: torch.Tensor, residual: torch.Tensor, given: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Nothing to be added any more, and the streams behind it; of what `forward` has given, and
        its inputs: [num_tokens, size].
        """
        assert given is not None, "its layers have inputs"
        factors = self._correction(self._modalities(delta)) + 1.0
        news = delta - residual[:, self._altup.active]
        streams = residual + news[:, None] * factors[:, :, None]
        gated = streams[:, self._altup.active].contiguous()
        if self._scale is not None:
            gated = gated * self._scale
        gates = activate(self._gate(gated), self._inputs.activation)
        streams[:, 1:] += rms_norm(self._up(gates * given), self._input_norm, self._eps)[:, None]
        return torch.zeros_like(delta), streams

    def _foretold(self, streams: torch.Tensor) -> torch.Tensor:
        """Each stream, and a mixture of all; added in order, so that a row's bits are its own."""
        num_streams = self._altup.num_streams
        modalities = self._modalities(streams[:, self._altup.active].contiguous())
        factors = self._prediction(modalities).view(-1, num_streams, num_streams, 1)
        mixed = streams[:, None, 0] * factors[:, :, 0]
        for idx in range(1, num_streams):
            mixed = mixed + streams[:, None, idx] * factors[:, :, idx]
        return mixed + streams

    def _modalities(self, stream: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_streams]."""
        scale = stream.shape[-1] ** -1.0
        routed = self._router(rms_norm(stream, self._norm, self._eps) * scale)
        return torch.tanh(routed.float()).to(stream.dtype)


class Laurel:
    """A learned augmented residual beside attention, of low rank (arXiv 2411.07501)."""

    def __init__(
        self,
        config: DecoderConfig,
        rank: int,
        weights: DecoderWeights,
        layer_id: int,
        ops: LayerOps,
    ) -> None:
        prefix, size = f"model.layers.{layer_id}.laurel.", config.hidden_size
        self._left = ops.projection(*weights.projection(prefix, {"linear_left": rank}, size))
        self._right = ops.projection(*weights.projection(prefix, {"linear_right": size}, rank))
        self._norm = weights.reader.read(f"{prefix}post_laurel_norm.weight", size)
        self._eps = config.norm.eps

    def joined(
        self, x: torch.Tensor, attended: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention gives of `x`, with its own, and the stream; both by sqrt(1/2)."""
        own = x + rms_norm(self._right(self._left(x)), self._norm, self._eps)
        return (attended + own) * 2**-0.5, residual * 2**-0.5


def _as_long_as(first: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    """With the root mean square of `first`."""
    wanted, found = _mean_square(first), _mean_square(stream)
    factor = wanted.sqrt() / found.clamp(min=LEAST_SQUARE).sqrt()
    return (stream.float() * factor).to(stream.dtype)


def _mean_square(x: torch.Tensor) -> torch.Tensor:
    mean, variance = moments(x)
    return mean.square() + variance
