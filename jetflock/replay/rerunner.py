"""Runs requests again over HTTP, whatever frontend dies meanwhile."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote

import httpx

from jetflock.replay.comparison import OWN_ENDS, Comparison
from jetflock.running.http_service import check_answer, object_of
from jetflock.running.running_service import ServiceError

_UNREACHED_S = 60.0  # frontends may be restarted meanwhile
_REFUSED_S = 600.0  # a full queue or a rate: what is compared can wait
_RETRY_S = 0.5
_MAX_WAIT_S = 30.0
_CONNECT_S = 5.0
_ANSWER_S = 3700.0  # longer than any deadline that frontends have by default
_MAY_PASS = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)


class Rerunner:
    """Any of the frontends will do, since they know the same requests: the first is in use."""

    def __init__(
        self, urls: Sequence[str], api_key: str | None, model: str | None, num_top: int
    ) -> None:
        """`model`: that runs again; None: each request's own. `num_top`: alternatives to each
        token of a second run.
        """
        self._urls = list(urls)
        self._model = model
        self._num_top = num_top
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def compared(
        self, request_id: str, choice: int, *, at: int = 0, to: int | None = None
    ) -> Comparison:
        """Compares so many tokens; None: all that the first run has. Raises ServiceError."""
        path = f"/v1/streams/{quote(request_id, safe='')}"
        top = {"top": self._num_top}
        first = await self.ask("GET", f"{path}/tokens", params={"choice": choice, **top})
        if first["finish_reason"] not in OWN_ENDS:  # it runs still, or was cut: no end to compare
            num = len(first["token_ids"])
            to = num if to is None else min(to, num)
        at = max(at, first["num_given_tokens"])  # of a fork: these no seed has drawn
        sampling: dict[str, Any] = {"seed": "source"}
        if at == 0:  # else what it begins with has the logprobs of its source
            sampling["logprobs"] = self._num_top
        if to is not None:
            sampling["max_tokens"] = to
        body: dict[str, Any] = {"choice": choice, "at": at, "sampling": sampling}
        if self._model is not None:
            body["model"] = self._model
        # Whoever asks again joins the run that it has begun.
        headers = {"x-job-class": "batch", "idempotency-key": f"replay-{secrets.token_hex(16)}"}
        answer = await self._answer("POST", f"{path}/fork", json=body, headers=headers)
        check_answer(answer)
        again = answer.headers["x-request-id"]
        second = await self.ask("GET", f"/v1/streams/{again}/tokens", params=top)
        return Comparison.of(first, second, to)

    async def page(self, query: Mapping[str, str | int]) -> dict[str, Any]:
        """A page of the kept streams. Raises ServiceError."""
        return await self.ask("GET", "/v1/streams", params=query)

    async def check_models(self, *names: str | None) -> None:
        """Raises ServiceError when one of them is not known."""
        for name in names:
            if name is not None:
                await self.ask("GET", f"/v1/models/{quote(name, safe='')}")

    async def loads(self) -> dict[str, Any]:
        """How full the service is. Raises ServiceError."""
        return await self.ask("GET", "/v1/loads")

    async def ask(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        """Raises ServiceError."""
        return object_of(await self._answer(method, path, **content))

    async def _answer(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Once somebody gives one that is none of "not now". Raises ServiceError."""
        began, unreached_since = time.monotonic(), None
        while True:
            wait_s, url = _RETRY_S, self._urls[0]
            try:
                response = await self._client.request(method, url + path, **content)
            except httpx.InvalidURL as exc:
                raise ServiceError(f"{url!r} is no URL: {exc}; check --url") from exc
            except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
                unreached_since = unreached_since or time.monotonic()
                if time.monotonic() - unreached_since > _UNREACHED_S:
                    raise ServiceError(
                        f"no answer from {url} ({exc or type(exc).__name__}); is it running "
                        "(jetflock serve)? Name another by --url"
                    ) from exc
                self._turn_from(url)
            except httpx.TransportError:  # it was cut: another frontend knows of it
                unreached_since = None
                self._turn_from(url)
            else:
                is_over = time.monotonic() - began > _REFUSED_S
                if response.status_code not in _MAY_PASS or is_over:
                    return response
                unreached_since = None
                told = response.headers.get("retry-after", "")
                wait_s = min(float(told), _MAX_WAIT_S) if told.isdecimal() else _RETRY_S
            await asyncio.sleep(wait_s)

    def _turn_from(self, url: str) -> None:
        """Go on with the next frontend, unless somebody has done so."""
        if self._urls[0] == url:
            self._urls.append(self._urls.pop(0))
