"""`jetflock batch`: runs files of requests when there is nothing more urgent."""

# No `from __future__ import annotations` here: cyclopts reads the types of the commands.

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jetflock.command_line.output import print_json, print_table
from jetflock.running.http_service import HttpService, check_answer, object_of
from jetflock.running.running_service import chosen_key, frontend_url
from shared.cli.program import Program
from shared.config import FLAT
from shared.errors import ConfigError, JetflockError

_NAME = "jetflock batch"
_SUMMARY = """\
Run files of requests (OpenAI's JSONL), when there is nothing more urgent, over HTTP.

The batch belongs to the service: it goes on without this command, and `wait` finds it again."""

_OVER = ("completed", "failed", "expired", "cancelled")
_POLL_S = 0.5
_COLUMNS = ("id", "status", "endpoint", "completed", "failed", "total")
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


class NotComplete(JetflockError):
    """The batch is over, and has not answered every line."""

    exit_status = 1


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Where the service is."""

    url: str = ""
    """Of a frontend, or of what is in front of them; by default that of the jetflock serve that
    runs here, else http://127.0.0.1:8000."""
    api_key: str | None = None
    """Key to send."""
    api_key_file: Path | None = None
    """File that holds the key."""

    def service(self) -> BatchService:
        """Raises ConfigError."""
        key = chosen_key(self.api_key, self.api_key_file)
        return BatchService(frontend_url(self.url), key)


_Config = Annotated[BatchConfig, FLAT]
_DEFAULTS = BatchConfig()


def run(
    file: Path,
    /,
    *,
    output: Path | None = None,
    errors: Path | None = None,
    completion_window: str = "24h",
    config: _Config = _DEFAULTS,
) -> None:
    """Upload FILE, run it, fetch what came of it.

    Answers go to OUTPUT (by default FILE with the suffix .output.jsonl), lines without one to
    ERRORS (OUTPUT with .errors.jsonl). Prints the batch, as JSON. Status 1 unless all are answered.
    """
    endpoint = _endpoint_of(file)
    with config.service() as service:
        batch = service.create(service.upload(file), endpoint, completion_window)
        _finish(service, batch, output or file.with_suffix(".output.jsonl"), errors)


def wait(
    batch_id: str,
    /,
    *,
    output: Path | None = None,
    errors: Path | None = None,
    config: _Config = _DEFAULTS,
) -> None:
    """Wait until a batch is over, and fetch its files, as `run` does; by default BATCH_ID.jsonl."""
    with config.service() as service:
        batch = service.batch(batch_id)
        _finish(service, batch, output or Path(f"{batch_id}.jsonl"), errors)


def cancel(batch_id: str, /, *, config: _Config = _DEFAULTS) -> None:
    """End a batch; what was done stays."""
    with config.service() as service:
        print_json(service.cancel(batch_id))


def list_(*, config: _Config = _DEFAULTS) -> None:
    """The latest batches."""
    with config.service() as service:
        batches = [batch | batch["request_counts"] for batch in service.batches()]
    rows = [[str(batch[column]) for column in _COLUMNS] for batch in batches]
    print_table(_COLUMNS, rows, "no batch is known")


_COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "wait": wait,
    "cancel": cancel,
    "list": list_,
}


def _endpoint_of(path: Path) -> str:
    """The url of the first line: all lines must have the same. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            first = next((raw for raw in file if raw.strip()), b"")
        return str(json.loads(first)["url"])
    except OSError as exc:
        raise ConfigError(f"cannot read {path}: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"the first line of {path} is no request of a batch: "
            '{"custom_id": ..., "method": "POST", "url": ..., "body": ...}'
        ) from exc


def _finish(
    service: BatchService, batch: dict[str, Any], output: Path, errors: Path | None
) -> None:
    """Raises NotComplete or ServiceError."""
    try:
        batch = _watched(service, batch)
    except KeyboardInterrupt:
        sys.stderr.write(f"\nThe batch runs on: {_NAME} wait {batch['id']}\n")
        raise SystemExit(130) from None
    if batch["output_file_id"]:
        service.download(batch["output_file_id"], output)
    if batch["error_file_id"]:
        service.download(batch["error_file_id"], errors or output.with_suffix(".errors.jsonl"))
    print_json(batch)
    counts = batch["request_counts"]
    if batch["status"] != "completed" or counts["completed"] < counts["total"]:
        raise NotComplete(
            f"the batch is {batch['status']}: {counts['completed']} of {counts['total']} "
            f"requests were answered{_first_error(batch)}"
        )


def _first_error(batch: dict[str, Any]) -> str:
    if not batch["errors"]:
        return ""
    error = batch["errors"]["data"][0]
    return (
        f"; line {error['line']}: {error['message']}" if error["line"] else f"; {error['message']}"
    )


def _watched(service: BatchService, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch when it is over, with a bar on stderr until then."""
    columns = (
        TextColumn("{task.fields[status]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    console.print(f"{batch['id']}", highlight=False)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None, status="", failed=0)
        while True:
            counts = batch["request_counts"]
            progress.update(
                task,
                total=counts["total"] or None,
                completed=counts["completed"] + counts["failed"],
                failed=counts["failed"],
                status=batch["status"],
            )
            if batch["status"] in _OVER:
                return batch
            time.sleep(_POLL_S)
            batch = service.batch(batch["id"])


PROGRAM = Program(name=_NAME, summary=_SUMMARY, commands=_COMMANDS)

if __name__ == "__main__":
    PROGRAM.run()
