"""The demo model, and conversations that it was not trained on."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch

from deploy.demo_model.corpus import conversations
from tests.worker.checkpoints import DEMO_MODEL

OTHER_SEED = 1_000_003  # of the conversations: training took 1 and 2

needs_demo_model = pytest.mark.skipif(
    not (DEMO_MODEL / "model.safetensors").exists(), reason="the demo model has not been made"
)


def conversation_ids(num_conversations: int) -> list[torch.Tensor]:
    """The token ids of each, by the model's template. [num_tokens] int64."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO_MODEL)
    chats = (turns for turns in conversations(OTHER_SEED) if turns[0].role != "text")
    return [
        torch.tensor(
            tokenizer.apply_chat_template(
                [{"role": turn.role, "content": turn.text} for turn in turns]
            )["input_ids"]
        )
        for turns in islice(chats, num_conversations)
    ]
