"""A tower as config.json describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """What sees or hears, beside a text model that is read on its own."""

    architecture: str  # of the whole
    hf_config: Any  # of the whole, its text without layers
    num_parameters: int  # without those of the text
