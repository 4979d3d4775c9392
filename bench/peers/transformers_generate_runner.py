"""Runs transformers' `generate`: one static batch, all rows step together."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from bench.peers.runner import RequestTrace, RunnerSettings, Stopwatch, serve


class TransformersGenerateRunner:
    """The model. The prompts of a run must have one length: nothing is padded."""

    def __init__(self, settings: RunnerSettings) -> None:
        self.version = transformers.__version__
        torch.set_num_threads(settings.num_threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            settings.model, dtype=getattr(torch, settings.dtype), attn_implementation="sdpa"
        )
        self._model.eval()

    def run(self, prompts: list[list[int]], output_len: int) -> list[RequestTrace]:
        stopwatch = Stopwatch()
        times_s: list[float] = []

        def stamp(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            times_s.append(stopwatch())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        input_ids = torch.tensor(prompts)
        with torch.inference_mode():
            output = self._model.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                do_sample=False,
                eos_token_id=None,
                pad_token_id=2,
                max_new_tokens=output_len,
                stopping_criteria=[stamp],
            )
        rows = output[:, input_ids.shape[1] :].tolist()
        return [RequestTrace(row, list(times_s)) for row in rows]

    def close(self) -> None:
        """Nothing: it is all in this process."""


if __name__ == "__main__":
    serve(TransformersGenerateRunner)
