"""A convolution over the last few inputs of a text, channel by channel."""

from __future__ import annotations

import torch

from worker.engine.layers.state_layer import StepStates


class ShortConvolution:
    """A weighted sum of a token's input and of those before it, in float32.

    A value at a time, in one order: a token's bits do not depend on how its text was cut.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` [num_channels, 1, kernel_size] as it is stored, `bias` [num_channels]."""
        self._taps = weight.float().squeeze(1).T.contiguous()  # [kernel_size, num_channels]
        self._bias = None if bias is None else bias.float()

    def forward(
        self,
        x: torch.Tensor,  # [num_tokens, num_channels] of the step
        past: torch.Tensor,  # [num_slots, kernel_size - 1, num_channels]: changes
        states: StepStates,
    ) -> torch.Tensor:
        """[num_tokens, num_channels] float32."""
        places = states.past_places(past.shape[1])
        inputs = torch.cat([past[states.slots].flatten(0, 1), x.float()])
        past[places.kept_slots] = inputs[places.kept]
        output = inputs[places.seen[0]] * self._taps[0]
        for seen, tap in zip(places.seen[1:], self._taps[1:], strict=True):
            output = output + inputs[seen] * tap
        return output if self._bias is None else output + self._bias
