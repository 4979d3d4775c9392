"""What a worker serves: a model as it is registered, and what belongs to it on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from shared.protocol.model_cards import ModelCard
from worker.weights.checkpoint import Checkpoint
from worker.weights.lora_folder import LoraFolder


@dataclass(slots=True)
class ServedWeights:
    """Shared by all that must know. Invariant: it changes only while nothing is held, so that the
    revision at a claim is that of the tokens which follow it.
    """

    checkpoint: Checkpoint

    @property
    def revision(self) -> str:
        return self.checkpoint.revision


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One model; only its weights may be replaced while the worker lives."""

    card: ModelCard
    tokenizer: Tokenizer
    weights: ServedWeights
    loras: LoraFolder
