"""What a worker serves: a model as it is registered, and what belongs to it on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from shared.protocol.model_cards import ModelCard
from worker.weights.lora_folder import LoraFolder
from worker.weights.served_weights import ServedWeights


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One model; only its weights may be replaced while the worker lives."""

    card: ModelCard
    tokenizer: Tokenizer
    weights: ServedWeights
    loras: LoraFolder
