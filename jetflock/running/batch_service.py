"""Files and batches of a running service, over HTTP."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Self

import httpx

from jetflock.running.http_service import HttpService, check_answer, object_of

_RETRY_FOR_S = 60.0  # frontends may be restarted meanwhile
_RETRY_S = 1.0


class BatchService:
    """What `jetflock batch` asks for. Questions are asked again while nobody answers."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._http = HttpService([url], api_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.__exit__(*exc_info)

    def upload(self, path: Path) -> str:
        """Returns the file's id. Raises ServiceError."""
        with path.open("rb") as file:
            files = {"file": (path.name, file)}
            answer = self._http.ask("POST", "/v1/files", data={"purpose": "batch"}, files=files)
        return str(answer["id"])

    def create(self, file_id: str, endpoint: str, completion_window: str) -> dict[str, Any]:
        """Raises ServiceError."""
        body = {
            "input_file_id": file_id,
            "endpoint": endpoint,
            "completion_window": completion_window,
        }
        return self._http.ask("POST", "/v1/batches", json=body)

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Raises ServiceError."""
        return self._get(f"/v1/batches/{batch_id}")

    def batches(self) -> list[dict[str, Any]]:
        """The latest hundred. Raises ServiceError."""
        return list(self._get("/v1/batches?limit=100")["data"])

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """Raises ServiceError."""
        return self._http.ask("POST", f"/v1/batches/{batch_id}/cancel")

    def download(self, file_id: str, path: Path) -> None:
        """Raises ServiceError."""
        try:
            answer = self._http.open("GET", f"/v1/files/{file_id}/content")
            with contextlib.closing(answer):
                if answer.is_error:
                    answer.read()
                    check_answer(answer)
                with path.open("wb") as file:
                    for piece in answer.iter_bytes():
                        file.write(piece)
        except httpx.TransportError as exc:
            raise self._http.unreachable(exc) from exc

    def _get(self, path: str) -> dict[str, Any]:
        give_up_at = time.monotonic() + _RETRY_FOR_S
        while True:
            try:
                answer = self._http.read("GET", path)
            except httpx.TransportError as exc:
                if time.monotonic() > give_up_at:
                    raise self._http.unreachable(exc) from exc
            else:
                if answer.status_code < 500 or time.monotonic() > give_up_at:
                    return object_of(answer)
            time.sleep(_RETRY_S)
