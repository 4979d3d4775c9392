"""The attention of encoders, as transformers' models call it: by name."""

from __future__ import annotations

from typing import Any

import torch

ENCODER_ATTENTION = "jetflock_encoder"


def register_encoder_attention() -> None:
    """Makes `attn_implementation=ENCODER_ATTENTION` known: torch's own, with the masks below."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ENCODER_ATTENTION, sdpa_attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ENCODER_ATTENTION, _mask)


def _mask(
    *,
    attention_mask: torch.Tensor | None = None,
    allow_is_bidirectional_skip: bool = False,
    **options: Any,
) -> torch.Tensor | None:
    """Looks at no values: transformers would, to see whether it is needed, and on a GPU wait."""
    from transformers.masking_utils import sdpa_mask

    mask: torch.Tensor | None = sdpa_mask(
        attention_mask=attention_mask,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip and attention_mask is None,
        **options,
    )
    return mask
