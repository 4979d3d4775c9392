"""The seam to a model: what every forward asks of a decoder, and what a decoder reads of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from worker.engine.layers.attention_backend import AttentionBackend, AttentionLayer
from worker.engine.layers.state_layer import StepStates
from worker.engine.lora.lora_adapter import LoraBatch
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights


class ImageRows(NamedTuple):
    """What the model sees in the place of some tokens' embeddings."""

    places: torch.Tensor  # [num_rows] int64, indices into the tokens of the step
    rows: torch.Tensor  # [1 + num_deep, num_rows, hidden_size]: the first in place of embeddings,
    # the others added to what the first layers give. What a request has given itself is float32.

    def put_into(self, embeddings: torch.Tensor) -> None:
        """[num_tokens, hidden_size], of the tokens of the step."""
        embeddings[self.places] = self.rows[0].to(embeddings.dtype)


class ModelInput(Protocol):
    """Tokens of all requests, one after the other, on the device of the model.

    Where the step's keys and values go is its attention's business.
    """

    @property
    def input_ids(self) -> torch.Tensor:
        """[num_tokens] int64."""
        ...

    @property
    def positions(self) -> torch.Tensor:
        """[num_tokens] int64."""
        ...

    @property
    def rope_positions(self) -> torch.Tensor:
        """What queries and keys are rotated by: `positions`, or [3, num_tokens], by axis."""
        ...

    @property
    def stage_rows(self) -> torch.Tensor | None:
        """[num_tokens, 2, hidden_size], of the stage before; None: it is the first."""
        ...

    @property
    def image_rows(self) -> Sequence[ImageRows]: ...

    @property
    def loras(self) -> LoraBatch | None:
        """None: no request of this step has an adapter."""
        ...

    @property
    def states(self) -> StepStates | None:
        """None: no layer of the model keeps one."""
        ...


class Model(Protocol):
    """A decoder with its weights, but without keys and values."""

    @property
    def attention_layers(self) -> Sequence[AttentionLayer]:
        """What the attention backend computes for it, by layer id."""
        ...

    def hidden(self, batch: ModelInput, attention: AttentionBackend) -> torch.Tensor:
        """[num_tokens, hidden_size] in the model's dtype: what the last norm gives; of a stage
        that is not the last one, `stage_rows` of the next.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of any rows of it: [num_rows, hidden_size] -> [num_rows, vocab_size], in that
        dtype.
        """
        ...

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """An adapter's, by the names under which `hidden` looks for them. Raises ConfigError."""
        ...
