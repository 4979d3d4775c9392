"""How a mixture of experts is made, told by data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from worker.engine.models.layer_config import LLAMA_MLP, MlpConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """MLPs of one size, of which a router chooses some for each token."""

    num_experts: int
    num_chosen: int  # for a token
    hidden_size: int
    intermediate_size: int  # of one expert
    mlp: MlpConfig = LLAMA_MLP  # of one expert
    latent_size: int = 0  # of what experts are given, and give, in a layer's place; 0: its own
    scoring: Literal["softmax", "sigmoid"]  # of the router's logits
    has_router_bias: bool = False
    has_correction: bool = False  # a bias that counts where experts are chosen, not in their shares
    is_correction_a_row: bool = False  # it is stored as [1, num_experts]
    num_groups: int = 1  # experts stand in groups of one size; the chosen are from some groups
    num_chosen_groups: int = 1
    num_group_scores: int = 1  # the best so many experts of a group, added, are its score
    is_normed: bool = False  # the shares of a token are divided by their sum
    norm_eps: float = 1e-20  # added to that sum
    scale: float = 1.0  # of all shares
    is_beside_mlp: bool = False  # of the layer, each with norms of its own; its router has scales
    scales_inputs: bool = False  # a share is of what its expert is given, not of what it gives
    shared_size: int = 0  # intermediate size of an MLP that every token goes through; 0: none
    shared_name: str = "shared_experts"  # its module
    shared_mlp: MlpConfig = LLAMA_MLP
    has_bias: bool = False  # each expert's matrices have, where all experts lie in one tensor
    is_stored_transposed: bool = False  # where all experts lie in one tensor: each by its columns
    is_stored_in_turns: bool = False  # likewise: a gate, then the value that it is multiplied with
    has_shared_gate: bool = False  # a sigmoid by which what it gives is multiplied, for each token

    @property
    def has_groups(self) -> bool:
        """Whether some are left out."""
        return self.num_chosen_groups < self.num_groups

    @property
    def outer_size(self) -> int:
        """The size of what an expert is given, and gives."""
        return self.latent_size or self.hidden_size

    @property
    def num_coded_values(self) -> int:
        """The values of weights that our C++ multiplies in their codes: all experts', of even
        sizes.
        """
        is_gated_by_silu = self.mlp.is_gated and self.mlp.activation == "silu"
        if self.outer_size % 2 or self.intermediate_size % 2 or not is_gated_by_silu:
            return 0
        return 3 * self.outer_size * self.num_experts * self.intermediate_size

    @property
    def is_native(self) -> bool:
        """Whether our C++ computes them within its decoder, with what chooses them."""
        is_apart = self.is_beside_mlp or self.scales_inputs or self.latent_size > 0
        is_shared_known = not self.shared_size or (
            self.shared_size % 2 == 0 and not self.shared_mlp.is_learned
        )
        return self.num_coded_values > 0 and is_shared_known and not is_apart

    @property
    def num_projection_values(self) -> int:
        """The values of the matrices of all experts, the shared one, and who chooses them."""
        experts_size = self.num_experts * self.mlp.num_projections * self.intermediate_size
        shared_size = self.shared_mlp.num_projections * self.shared_size + self.has_shared_gate
        others_size = shared_size + self.num_experts + 2 * self.latent_size
        return self.outer_size * experts_size + self.hidden_size * others_size

    @property
    def obstacle(self) -> str | None:
        """Why these numbers make no sense."""
        if self.num_chosen > self.num_experts:
            return f"{self.num_chosen} experts cannot be chosen of {self.num_experts}"
        if self.num_experts % self.num_groups:
            return f"{self.num_experts} experts do not make {self.num_groups} equal groups"
        size = self.num_experts // self.num_groups
        if self.num_chosen_groups > self.num_groups:
            return f"{self.num_chosen_groups} groups cannot be chosen of {self.num_groups}"
        if self.num_chosen > size * self.num_chosen_groups:
            return f"{self.num_chosen_groups} groups of {size} have no {self.num_chosen} experts"
        if self.num_group_scores > size:
            return f"groups of {size} experts have no {self.num_group_scores} to be scored by"
        return None
