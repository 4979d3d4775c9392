"""LFM2's layers without attention."""

from __future__ import annotations

import torch

from worker.engine.layers.attention_backend import AttentionBackend
from worker.engine.layers.linear import Linear
from worker.engine.models.decoder_weights import DecoderWeights
from worker.engine.models.layer_ops import LayerOps
from worker.engine.models.model import ModelInput
from worker.engine.models.recurrent.recurrent_config import ShortConvConfig
from worker.engine.models.recurrent.short_convolution import ShortConvolution


class ShortConvMixer:
    """Gates its input, joins it with the last ones of the text, and gates the sum."""

    def __init__(
        self,
        config: ShortConvConfig,
        weights: DecoderWeights,
        prefix: str,  # of the names of its tensors
        ops: LayerOps,
        state_id: int,  # its place among the recurrent layers
    ) -> None:
        size = config.num_channels

        def projection(name: str, num_outputs: int) -> Linear:
            sizes = {name: num_outputs}
            return ops.projection(
                *weights.projection(prefix, sizes, size, has_bias=config.has_bias)
            )

        self._state_id = state_id
        read = weights.reader.read
        self._in = projection("in_proj", 3 * size)
        self._convolution = ShortConvolution(
            read(f"{prefix}conv.weight", size, 1, config.kernel_size),
            read(f"{prefix}conv.bias", size) if config.has_bias else None,
        )
        self._out = projection("out_proj", size)

    def forward(
        self, x: torch.Tensor, batch: ModelInput, attention: AttentionBackend
    ) -> torch.Tensor:
        """[num_tokens, num_channels] -> the same."""
        states = batch.states
        assert states is not None, "the runner has a cache of them"
        gate_in, gate_out, values = self._in(x).chunk(3, dim=-1)
        (past,) = states.layers[self._state_id]
        joined = self._convolution.forward(gate_in * values, past, states)
        return self._out(gate_out * joined.to(x.dtype))
