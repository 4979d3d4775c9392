"""The HTTP routes of Ollama's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from frontend.fields.request_body import BodyReader
from frontend.http.error_response import json_response
from frontend.http.http_request import HttpBodies
from frontend.inference.inference import Inference
from frontend.jobs.job import Caller
from frontend.models.model_directory import ModelDirectory
from frontend.routes.answer_response import AnswerResponse
from frontend.routes.api_route import ApiRoute
from frontend.surfaces.ollama.answer_events import answer_head
from frontend.surfaces.ollama.body import SHOW_IGNORED, OllamaShowBody
from frontend.surfaces.ollama.model_views import running, served_name, shown, tags
from frontend.surfaces.ollama.ollama_answer import (
    OllamaChat,
    OllamaGenerated,
    OllamaMessage,
    OllamaVersion,
    ollama_error_body,
)
from frontend.text.event_writer import encode_json
from frontend.text.wire_struct import WireStruct
from shared.protocol.reply import Surface

API_VERSION = "0.13.0"  # of Ollama, whose API this is: clients ask for a smallest one


class OllamaRoutes:
    """Streams unless the body says otherwise."""

    def __init__(
        self,
        inference: Inference,
        models: ModelDirectory,
        version: str,
        bodies: HttpBodies,
        *,
        ping_interval_s: float,
    ) -> None:
        self._inference = inference
        self._models = models
        self._version = version
        self._bodies = bodies
        self._ping_interval_s = ping_interval_s
        self._show_reader = BodyReader(OllamaShowBody, {}, SHOW_IGNORED)

    def routes(self) -> Sequence[ApiRoute]:
        return [
            ApiRoute("POST", "/api/chat", self.chat, ollama_error_body),
            ApiRoute("POST", "/api/generate", self.generate, ollama_error_body),
            ApiRoute("POST", "/api/embed", self.embed, ollama_error_body),
            ApiRoute("POST", "/api/show", self.show, ollama_error_body),
            ApiRoute("GET", "/api/tags", self.tags, ollama_error_body),
            ApiRoute("GET", "/api/ps", self.running, ollama_error_body),
            ApiRoute("GET", "/api/version", self.version, ollama_error_body),
        ]

    async def chat(self, request: Request, caller: Caller) -> Response | AnswerResponse:
        with await self._bodies.read(request, caller) as body:
            if body.get("messages") in (None, []):
                message = OllamaMessage(role="assistant", content="")
                return _json(OllamaChat(**await self._loaded(body, caller), message=message))
            return await self._started(Surface.OLLAMA_CHAT, _streaming(body), caller)

    async def generate(self, request: Request, caller: Caller) -> Response | AnswerResponse:
        with await self._bodies.read(request, caller) as body:
            if body.get("prompt") in (None, ""):
                return _json(OllamaGenerated(**await self._loaded(body, caller), response=""))
            return await self._started(Surface.OLLAMA_GENERATE, _streaming(body), caller)

    async def embed(self, request: Request, caller: Caller) -> AnswerResponse:
        with await self._bodies.read(request, caller) as body:
            return await self._started(Surface.OLLAMA_EMBED, body, caller)

    async def tags(self, request: Request, caller: Caller) -> Response:
        return _json(tags(self._models.named()))

    async def running(self, request: Request, caller: Caller) -> Response:
        return _json(running(self._models.named()))

    async def show(self, request: Request, caller: Caller) -> Response:
        with await self._bodies.read(request, caller) as raw:
            body = self._show_reader.read(raw, caller.unknown)
            name = served_name(self._models, body.model or body.name)
            return _json(shown(await self._models.model(name)))

    async def version(self, request: Request, caller: Caller) -> Response:
        return _json(OllamaVersion(version=API_VERSION, jetflock=self._version))

    async def _started(
        self, surface: Surface, body: dict[str, Any], caller: Caller
    ) -> AnswerResponse:
        answer = await self._inference.start(surface, body, caller)
        return AnswerResponse(answer, self._ping_interval_s)

    async def _loaded(self, body: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answers a body without a prompt, by which clients have a model loaded: workers have.

        Returns all of the answer that is not in place of the model's words.
        """
        self._inference.admit_call(caller)
        given = body.get("model")
        name = served_name(self._models, given if isinstance(given, str) else None)
        model = await self._models.find(name)
        return {**answer_head(model.name), "done": True, "done_reason": "load"}


def _json(answer: WireStruct) -> Response:
    return json_response(encode_json(answer))


def _streaming(body: dict[str, Any]) -> dict[str, Any]:
    """Unless it says otherwise."""
    return {**body, "stream": True} if body.get("stream") is None else body
