"""Why and how a request ended."""

from __future__ import annotations

import enum

import msgspec


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"  # end-of-turn token, stop token or stop string
    LENGTH = "length"  # max_tokens or the context length
    CANCEL = "cancel"  # ended by its client, or because the client is gone
    DEADLINE = "deadline"  # its time budget ran out
    QUEUE_TIMEOUT = "queue_timeout"  # no worker claimed it in time
    UNSERVED = "unserved"  # nobody serves its model, or its workers do not come up
    POISON = "poison"  # it crashed too many workers
    WEIGHTS_REPLACED = "weights_replaced"  # no worker has the weights that it began with
    ADAPTER_UNLOADED = "adapter_unloaded"  # its LoRA adapter is not one of the model's any more
    ERROR = "error"  # the engine failed it, or the log is damaged


class Beam(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One output that a beam search has found."""

    token_ids: bytes  # little-endian uint32
    cumulative_logprob: float  # of all its tokens
    reason: FinishReason  # STOP or LENGTH
    text: str = ""  # the worker fills it in


class RunFacts(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """How the run that finished a request went; each interval is of one process's clock."""

    workers: tuple[str, ...] = ()  # that have claimed it, in order, at most the last 16
    queue_s: float = 0.0  # inside the last of them, before its first step
    prefill_s: float = 0.0  # from there to its first token
    decode_s: float = 0.0  # from there to its last
    num_given: int = 0  # tokens at the beginning that nobody made: those of a fork


class Cost(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a request has taken up to some moment, by all workers that have run it. Who goes on with
    it adds to what the log says, and tells the sum.
    """

    engine_s: float = 0.0  # its shares of engine steps: a step is shared by tokens
    num_computed: int = 0  # of prompt, and of output at a hand-over, that went through the model
    num_drafted: int = 0  # tokens guessed
    repeated_s: float = 0.0  # of `engine_s`: what was computed again, or for nothing
    num_repeated: int = 0  # of `num_computed`
    queue_s: float = 0.0  # from the queue's taking it to its first claim
    held_s: float = 0.0  # workers had it, from their claims on
    unmeasured_s: float = 0.0  # beyond: from the last that a worker told to its death, at most
    num_handovers: int = 0  # from one worker to another


NO_COST = Cost()


class Finish(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """How a request ended: decided once, in the log."""

    reason: FinishReason
    matched: str | int | None = None  # the stop string or stop token that ended it
    message: str | None = None  # of an ERROR
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    # The vector of a request with `pooling`, or the hidden states that one asks for: little-endian
    # float32.
    embedding: bytes = b""
    beams: tuple[Beam, ...] = ()  # the result of a request with `beam`, the best first
    run: RunFacts | None = None  # of one that an engine has finished

    @property
    def num_beam_tokens(self) -> int:
        """The tokens of all the outputs that a beam search has found."""
        if not self.beams:
            return 0
        return sum(len(beam.token_ids) // 4 for beam in self.beams)

    @property
    def num_result_bytes(self) -> int:
        """What a result that is no token takes in a message, about."""
        num_bytes = len(self.embedding)
        for beam in self.beams:
            num_bytes += 32 + len(beam.token_ids) + len(beam.text.encode())
        return num_bytes
