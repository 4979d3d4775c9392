"""When a run is over by its tokens: end-of-turn and stop tokens, max_tokens, context length."""

from __future__ import annotations

from collections.abc import Sequence

from shared.protocol.finish import Finish, FinishReason
from shared.protocol.sampling import SamplingParams


class StopCheck:
    """Knows the model's limits, and judges the last token of an output."""

    def __init__(self, eos_token_ids: Sequence[int], max_context_len: int) -> None:
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_context_len = max_context_len

    def stop_token_ids(self, sampling: SamplingParams) -> frozenset[int]:
        """The ids that end this request, once it has min_tokens."""
        stop_ids = frozenset(sampling.stop_token_ids)
        return stop_ids if sampling.ignore_eos else stop_ids | self.eos_token_ids

    def max_num_tokens(self, sampling: SamplingParams, num_prompt_tokens: int) -> int:
        """Prompt and output together; then it is over at the latest."""
        return min(num_prompt_tokens + sampling.max_tokens, self.max_context_len)

    def finish_of(
        self,
        sampling: SamplingParams,
        stop_token_ids: frozenset[int],
        num_prompt_tokens: int,
        num_output_tokens: int,
        last_token_id: int,
    ) -> Finish | None:
        """None while the run goes on. Without any output, the last token is the prompt's."""
        has_min_tokens = num_output_tokens >= max(1, sampling.min_tokens)
        if has_min_tokens and last_token_id in stop_token_ids:
            return Finish(FinishReason.STOP, matched=last_token_id)
        if num_output_tokens >= sampling.max_tokens:
            return Finish(FinishReason.LENGTH)
        if num_prompt_tokens + num_output_tokens >= self.max_context_len:
            return Finish(FinishReason.LENGTH)
        return None
