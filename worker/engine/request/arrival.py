"""A request as it came to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.engine.request.req_embeds import ReqEmbeds
from worker.engine.request.req_image import ReqImage
from worker.engine.request.req_window import ReqWindow, Sound
from worker.engine.request.token_functions import BoundFunction
from worker.engine_link.engine_messages import AddRequest


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Adapter:
    """What a request runs with, as far as its plan has to know it.

    Requests of one step that share it are computed together; its weights are the model's.
    """

    adapter_id: str


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """The I/O process's command, and what the engine knows of it."""

    command: AddRequest
    number: int  # order in which requests came to this engine
    at_s: float = 0.0  # by the engine's clock
    adapter: Adapter | None = None  # that the command names
    images: Sequence[ReqImage] = ()  # in their order, without overlaps
    functions: Sequence[BoundFunction] = ()  # of the operator, that the command names
    embeds: ReqEmbeds | None = None  # None: the prompt is of tokens
    sound: Sound | None = None  # of a run that is transcribed, a window a request
    window: ReqWindow | None = None  # of such a request

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.command.prompt_ids) // 4

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return self.num_prompt_tokens + len(self.command.output_ids) // 4
