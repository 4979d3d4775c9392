"""Files and batches of a running service, over HTTP."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from shared.errors import JetflockError

_TIMEOUT_S = 60.0
_RETRY_FOR_S = 60.0  # frontends may be restarted meanwhile
_RETRY_S = 1.0


class ServiceError(JetflockError):
    """The service refused, or does not answer."""


class BatchService:
    """What `jetflock batch` asks for. Questions are asked again while nobody answers."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S)

    def __enter__(self) -> BatchService:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.close()

    def upload(self, path: Path) -> str:
        """Returns the file's id. Raises ServiceError."""
        with path.open("rb") as file, self._told():
            answer = self._client.post(
                "/v1/files", data={"purpose": "batch"}, files={"file": (path.name, file)}
            )
        return str(self._object(answer)["id"])

    def create(self, file_id: str, endpoint: str, completion_window: str) -> dict[str, Any]:
        """Raises ServiceError."""
        body = {
            "input_file_id": file_id,
            "endpoint": endpoint,
            "completion_window": completion_window,
        }
        with self._told():
            return self._object(self._client.post("/v1/batches", json=body))

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Raises ServiceError."""
        return self._get(f"/v1/batches/{batch_id}")

    def batches(self) -> list[dict[str, Any]]:
        """The latest hundred. Raises ServiceError."""
        return list(self._get("/v1/batches?limit=100")["data"])

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """Raises ServiceError."""
        with self._told():
            return self._object(self._client.post(f"/v1/batches/{batch_id}/cancel"))

    def download(self, file_id: str, path: Path) -> None:
        """Raises ServiceError."""
        with (
            self._told(),
            self._client.stream("GET", f"/v1/files/{file_id}/content") as answer,
            path.open("wb") as file,
        ):
            if answer.status_code != httpx.codes.OK:
                answer.read()
                self._object(answer)
            for piece in answer.iter_bytes():
                file.write(piece)

    def _get(self, path: str) -> dict[str, Any]:
        give_up_at = time.monotonic() + _RETRY_FOR_S
        while True:
            try:
                answer = self._client.get(path)
            except httpx.TransportError as exc:
                if time.monotonic() > give_up_at:
                    raise self._unreachable(exc) from exc
            else:
                if answer.status_code < 500 or time.monotonic() > give_up_at:
                    return self._object(answer)
            time.sleep(_RETRY_S)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as exc:
            raise self._unreachable(exc) from exc

    def _unreachable(self, exc: Exception) -> ServiceError:
        return ServiceError(f"{self._url} does not answer ({exc!r}); name another by --url")

    def _object(self, answer: httpx.Response) -> dict[str, Any]:
        """Raises ServiceError."""
        try:
            body = answer.json()
            message = body["error"]["message"] if answer.is_error else ""
        except (ValueError, KeyError, TypeError) as exc:
            raise ServiceError(f"{answer.url} is no jetflock: {answer.text[:80]!r}") from exc
        if answer.is_error:
            raise ServiceError(f"{answer.url.path}: {message}")
        return dict(body)
