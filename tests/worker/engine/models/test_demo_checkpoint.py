"""The model that the fault tests serve: what they rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.engine.tiny_models import Rig
from tests.worker.engine_fakes import make_add

DEMO = Path(__file__).parents[4] / "deploy/demo_model/checkpoint"
PROMPTS = ["Hello, who are you?", "Tell me a story about a fox.", "What is 7 plus 5?"]

pytestmark = pytest.mark.skipif(
    not (DEMO / "model.safetensors").exists(), reason="the demo model has not been made"
)


def prompts() -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    chats = [[{"role": "user", "content": text}] for text in PROMPTS]
    return [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        for chat in chats
    ]


def test_greedy_answers_are_those_of_transformers() -> None:
    from transformers import LlamaForCausalLM

    reference: Any = LlamaForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    tokens = Rig(DEMO).run(
        *(make_add(run_id, ids, max_tokens=60) for run_id, ids in enumerate(prompts()))
    )
    for run_id, ids in enumerate(prompts()):
        answer = reference.generate(torch.tensor([ids]), max_new_tokens=60, do_sample=False)
        assert tokens[run_id] == answer[0, len(ids) :].tolist()


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "seeded"]
)
def test_answers_resume_as_they_would_have_gone_on(sampling: dict[str, Any]) -> None:
    ids = prompts()[1]
    whole = Rig(DEMO).run(make_add(1, ids, max_tokens=80, **sampling))[1]
    rig = Rig(DEMO)
    cuts = range(1, len(whole) - 1, 13)
    rest = rig.run(*(make_add(cut, ids, whole[:cut], max_tokens=80, **sampling) for cut in cuts))
    for cut in cuts:
        assert whole[:cut] + rest[cut] == whole
