"""What the engine without a model is told at its start."""

# No `from __future__ import annotations` here: the fields' types are read at run time, by
# subclasses in other modules.
from dataclasses import dataclass
from typing import ClassVar

from worker.engine_link.engine_config import EngineConfig


@dataclass(frozen=True, kw_only=True)
class ScriptedConfig(EngineConfig):
    """Of an engine's settings it heeds the limits and the checkpoint."""

    help_group: ClassVar[str] = "Scripted engine, for tests and benchmarks"
    program: ClassVar[str] = "worker.engine.scripted"

    scripted_prefill_s: float = 0.0
    """Scripted: time from admission to the first token."""
    scripted_token_s: float = 0.0
    """Scripted: time from token to token; 0 is as fast as it goes."""
    scripted_vocab_size: int = 32000
    """Scripted: size of the vocabulary that is announced."""
    scripted_token_low: int = 0
    """Scripted: lowest token id that is made."""
    scripted_token_high: int | None = None
    """Scripted: end of the range of ids, exclusive; by default the vocabulary's."""
    scripted_poison_token: int | None = None
    """Scripted: a prompt that holds this id kills the engine process when it is prefilled."""
    scripted_worker_poison_token: int | None = None
    """Scripted: the same, and it kills the whole worker."""
    scripted_by_weights: bool = False
    """Scripted: other weight files make other tokens."""
    scripted_hang_token: int | None = None
    """Scripted: a prompt that holds this id holds all steps up when it is prefilled."""
    scripted_hang_s: float = 3600.0
    """Scripted: for so long."""
