"""The tensors that one quantised weight is stored in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shared.checkpoint.formats.tensor_heads import WeightHeads
from shared.errors import ConfigError
from worker.engine.formats.tensor_files import TensorFiles


@dataclass(frozen=True, slots=True)
class WeightParts:
    """The parts by suffixes of their names. What it refuses, it names: each of its methods may
    raise ConfigError.
    """

    heads: WeightHeads  # checked
    files: TensorFiles

    @property
    def stem(self) -> str:
        """What all their names begin with."""
        return self.heads.stem

    def get(self, suffix: str) -> torch.Tensor:
        return self.files.get(self.stem + suffix)

    def scales(self, suffix: str) -> torch.Tensor:
        """In float32, each of them a number."""
        scales = self.get(suffix)
        return self.numbers(suffix, scales.to(torch.float32))

    def numbers(self, suffix: str, scales: torch.Tensor) -> torch.Tensor:
        """The same; refused where one of them is not finite."""
        if not bool(torch.isfinite(scales).all()):
            raise self.error(f"has scales in {self.stem + suffix!r} that are no numbers")
        return scales

    def groups(self, suffix: str, num_groups: int, group_size: int | None) -> torch.Tensor | None:
        """Each column's group, [columns] int64. None where it is by place: nothing is stored there,
        or -1 for all, or what its place says, as tools write it that know of no other order.
        """
        if not self.heads.has(suffix):
            return None
        groups = self.get(suffix).to(torch.int64)
        by_place = torch.arange(len(groups)) // (group_size or len(groups))
        if torch.equal(groups, by_place) or bool((groups == -1).all()):
            return None
        if bool((groups < 0).any()) or bool((groups >= num_groups).any()):
            raise self.error(f"has groups in {self.stem + suffix!r} that it has no scales of")
        return groups

    def error(self, what: str) -> ConfigError:
        return self.heads.error(what)
