"""What a step of the model gives back to the scheduler."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from worker.engine.request.schedule_batch import ScheduleBatch


class SampleError(enum.Enum):
    """Why no token could be chosen in a place: it fails its request, and no other one.

    The value is what the client reads.
    """

    NOT_A_NUMBER = "the model's output for this request is not a number"
    NOTHING_ALLOWED = (
        "no token is left to choose: logit_bias, allowed_token_ids, bad_words and min_tokens "
        "together exclude every one"
    )


@dataclass(frozen=True, slots=True)
class StepResult:
    """One value for each of the batch's sample points, in order."""

    token_ids: list[int | SampleError]
    logprobs: Sequence[bytes] = ()  # records, b"" where none is asked for; () when nobody asks
    # By run id, of the chunks of those that want them: records of `shared.protocol.logprobs`.
    prompt_logprobs: Mapping[int, bytes | SampleError] = field(default_factory=dict)
    # By run id, of entries that give one.
    embeddings: Mapping[int, bytes | SampleError] = field(default_factory=dict)
    # Memory was short: the step was computed again, at most so many tokens at once.
    num_fitting: int | None = None


class StepHandle(Protocol):
    """A step that was launched."""

    def choose(self) -> None:
        """Chooses once for a batch that chooses late: reads what it needs of the batch's requests
        now.

        The steps before it are booked, and none has been launched behind it.
        """
        ...

    def collect(self) -> StepResult:
        """Waits for its end. Called once."""
        ...


@dataclass(frozen=True, slots=True)
class DoneStep:
    """The handle of a runner that computes at launch."""

    result: StepResult

    def choose(self) -> None:
        raise AssertionError("it has chosen at launch")

    def collect(self) -> StepResult:
        return self.result


class BatchRunner(Protocol):
    """Computes planned steps, one after the other. Tests put a hash in its place."""

    def launch(self, batch: ScheduleBatch) -> StepHandle:
        """Reads all it needs of the batch's requests now: they change before `collect`.

        Of a batch that chooses late, how to choose is read by `StepHandle.choose`.
        """
        ...
