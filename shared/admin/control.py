"""What an operator tells workers, and what they answer: JSON on the subjects `jf.adm.<pool>...`.

JSON, since a person with nothing but the `nats` command shall be able to stop a pool:
`nats request jf.adm.<pool> '{"verb": "pause"}'`.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from shared.errors import MalformedMessage
from shared.protocol.model_cards import ModelCard


class PauseMode(enum.StrEnum):
    """What becomes of requests that run."""

    FINISH = "finish"  # they go on to their end
    FREEZE = "freeze"  # they stand still, and stay where they are


class Pause(msgspec.Struct, frozen=True, tag_field="verb", tag="pause", forbid_unknown_fields=True):
    """Take no more requests."""

    mode: PauseMode = PauseMode.FINISH
    freeze_s: float = 300.0  # what is frozen longer is handed over to others


class Continue(
    msgspec.Struct, frozen=True, tag_field="verb", tag="continue", forbid_unknown_fields=True
):
    """Undo a pause of either mode."""


class Drain(msgspec.Struct, frozen=True, tag_field="verb", tag="drain", forbid_unknown_fields=True):
    """Take no more requests, hand over what runs, and exit."""

    timeout_s: float | None = None  # for running requests to finish; None: as after SIGTERM


class Kill(msgspec.Struct, frozen=True, tag_field="verb", tag="kill", forbid_unknown_fields=True):
    """Die at once, as by `kill -9`, engine and all. The answer is its last word."""


class FlushCache(
    msgspec.Struct, frozen=True, tag_field="verb", tag="flush_cache", forbid_unknown_fields=True
):
    """Forget all cached prefixes that no running request holds."""


class GetStats(
    msgspec.Struct, frozen=True, tag_field="verb", tag="stats", forbid_unknown_fields=True
):
    """Tell how things are; changes nothing."""


class CheckWeights(
    msgspec.Struct, frozen=True, tag_field="verb", tag="check_weights", forbid_unknown_fields=True
):
    """Tell whether the checkpoint there could replace the one that is served; changes nothing."""

    model_path: str  # a folder on the worker's machine, absolute


class UpdateWeights(
    msgspec.Struct, frozen=True, tag_field="verb", tag="update_weights", forbid_unknown_fields=True
):
    """Serve the checkpoint there from now on. The answer says that it has begun; the worker card
    shows how it goes.
    """

    model_path: str
    revision: str = ""  # that it must have; "": any
    finish_timeout_s: float = 600.0  # for running requests to finish; then they are handed over


class Sleep(msgspec.Struct, frozen=True, tag_field="verb", tag="sleep", forbid_unknown_fields=True):
    """Take no more requests, hand over what runs, and give memory back. The answer says that it has
    begun; the worker card shows how it goes.
    """

    level: int = 1  # 1: that of cached keys and values; 2: that of the weights, too
    finish_timeout_s: float = 0.0  # for running requests to finish; then they are handed over


class WakeUp(
    msgspec.Struct, frozen=True, tag_field="verb", tag="wake_up", forbid_unknown_fields=True
):
    """Take requests again. The worker card shows when what was given back has been loaded."""


class LoadLora(
    msgspec.Struct, frozen=True, tag_field="verb", tag="load_lora", forbid_unknown_fields=True
):
    """Load a LoRA adapter that the model's card lists. The answer says what came of it."""

    revision: str


class UnloadLora(
    msgspec.Struct, frozen=True, tag_field="verb", tag="unload_lora", forbid_unknown_fields=True
):
    """Forget a LoRA adapter that the model's card does not list any more; what runs goes on."""

    revision: str


MAX_PROFILE_S = 60.0


class StartProfile(
    msgspec.Struct, frozen=True, tag_field="verb", tag="start_profile", forbid_unknown_fields=True
):
    """Profile what the engine computes, into a folder that the worker was told at its start."""

    max_s: float = 10.0  # then it ends by itself


class StopProfile(
    msgspec.Struct, frozen=True, tag_field="verb", tag="stop_profile", forbid_unknown_fields=True
):
    """End the profile, and write it; without effect where none runs."""


ControlRequest: TypeAlias = (
    Pause
    | Continue
    | Drain
    | Kill
    | FlushCache
    | GetStats
    | CheckWeights
    | UpdateWeights
    | Sleep
    | WakeUp
    | LoadLora
    | UnloadLora
    | StartProfile
    | StopProfile
)


class WorkerStats(msgspec.Struct, frozen=True):
    """One worker, now. Counts are since its start."""

    state: str
    revision: str
    uptime_s: float
    num_held: int  # requests that it owns: running, and those whose end is being settled
    num_running: int
    num_waiting: int  # inside the engine
    max_running: int
    kv_cache_usage: float  # 0 to 1
    num_steps: int
    step_age_s: float  # since the last step, while there is something to do
    num_taken: int
    num_finished: int
    num_released: int
    num_fenced: int
    num_generated_tokens: int
    num_engine_restarts: int


class ControlReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker's answer."""

    worker: str
    ok: bool
    message: str = ""
    stats: WorkerStats | None = None
    card: ModelCard | None = None  # of the checkpoint that was checked
    num_updates: int = 0  # of weights or sleep, with the one that has begun now
    refusal: str = ""  # why the engine does not load a LoRA adapter


_decode_request = msgspec.json.Decoder(ControlRequest).decode
_decode_reply = msgspec.json.Decoder(ControlReply).decode


def encode_control(message: ControlRequest | ControlReply) -> bytes:
    """JSON."""
    return msgspec.json.encode(message)


def decode_control_request(data: bytes) -> ControlRequest:
    """Raises MalformedMessage, which names the field."""
    try:
        request: ControlRequest = _decode_request(data)
        return request
    except msgspec.DecodeError as exc:
        raise MalformedMessage(str(exc)) from exc


def decode_control_reply(data: bytes) -> ControlReply:
    """Raises MalformedMessage."""
    try:
        return _decode_reply(data)
    except msgspec.DecodeError as exc:
        raise MalformedMessage(str(exc)) from exc
