"""The input file of a batch: lines of JSON, checked before any of them runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from frontend.fields.request_body import check_depth
from frontend.stored.batches.batch_record import InputError
from shared.errors import InvalidRequest

MAX_ERRORS = 100  # that are told


class _Line(msgspec.Struct, frozen=True):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: Any = None


_decode_line = msgspec.json.Decoder(_Line).decode


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request."""

    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchInput:
    """Where the lines begin in a local copy of the file; empty ones are left out."""

    file: IO[bytes]
    offsets: array[int]  # [num_lines] bytes

    def __len__(self) -> int:
        return len(self.offsets)

    def line(self, idx: int) -> BatchLine:
        """A line of a file that was checked."""
        self.file.seek(self.offsets[idx])
        line = _decode_line(self.file.readline())
        return BatchLine(line.custom_id, line.body)

    def custom_id(self, idx: int) -> str:
        return self.line(idx).custom_id


@dataclass(slots=True)
class CheckedInput:
    """What a look at the whole file tells."""

    input: BatchInput
    errors: list[InputError]


def check_input(
    file: IO[bytes], endpoint: str, *, max_lines: int, max_line_bytes: int
) -> CheckedInput:
    """Slow: off the event loop."""
    offsets: array[int] = array("q")
    checked = CheckedInput(BatchInput(file, offsets), [])
    ids: set[str] = set()
    for number, offset, raw in _lines(file, max_line_bytes):
        if len(offsets) == max_lines:
            message = f"A batch may have {max_lines} requests (--batch-max-lines)."
            checked.errors.append(InputError("too_many_requests", message, number))
            return checked
        offsets.append(offset)
        error = _check_line(raw, number, endpoint, ids, max_line_bytes)
        if error is not None:
            checked.errors.append(error)
            if len(checked.errors) == MAX_ERRORS:
                return checked
    if not offsets:
        checked.errors.append(InputError("empty_file", "The input file has no requests."))
    return checked


def _lines(file: IO[bytes], max_line_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and at most a little more than the bytes allowed of each line."""
    file.seek(0)
    number, offset = 0, 0
    while raw := file.readline(max_line_bytes + 2):
        number += 1
        start, offset = offset, offset + len(raw)
        while raw[-1:] != b"\n" and len(raw) > max_line_bytes:
            rest = file.readline(max_line_bytes)
            offset += len(rest)
            if not rest or rest.endswith(b"\n"):
                break
        if raw.strip():
            yield number, start, raw


def _check_line(
    raw: bytes,
    number: int,
    endpoint: str,
    ids: set[str],
    max_line_bytes: int,
) -> InputError | None:
    """The first thing that is wrong with it."""
    if len(raw) > max_line_bytes + 1:
        return InputError(
            "request_too_large", f"The line is longer than {max_line_bytes} bytes.", number
        )
    try:
        line = _decode_line(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return InputError(
            "invalid_json_line", f"The line is not a JSON object: {str(exc)[:200]}", number
        )
    try:
        check_depth([line.custom_id, line.method, line.url, line.body])
    except InvalidRequest as exc:
        return InputError("invalid_json_line", exc.message, number)
    if not isinstance(line.custom_id, str) or not 1 <= len(line.custom_id) <= 512:
        return _missing("custom_id", "a text of 1 to 512 characters", number)
    if line.custom_id in ids:
        message = f"The custom_id {line.custom_id[:80]!r} is used twice."
        return InputError("duplicate_custom_id", message, number, "custom_id")
    ids.add(line.custom_id)
    if line.method != "POST":
        return InputError(
            "invalid_method", f"method is {_shown(line.method)}, must be 'POST'.", number, "method"
        )
    if line.url != endpoint:
        return InputError(
            "mismatched_url",
            f"url is {_shown(line.url)}, the batch's endpoint is {endpoint!r}.",
            number,
            "url",
        )
    return _check_body(line.body, number)


def _check_body(body: Any, number: int) -> InputError | None:
    if not isinstance(body, dict):
        return _missing("body", "an object", number)
    if not isinstance(body.get("model"), str):
        return _missing("body.model", "a text", number)
    for field in ("stream", "background", "idempotency_key"):
        if body.get(field):
            message = f"{field} is {_shown(body[field])}, which a line of a batch cannot have."
            return InputError("unsupported_parameter", message, number, f"body.{field}")
    return None


def _missing(name: str, what: str, number: int) -> InputError:
    return InputError("missing_required_parameter", f"{name} must be {what}.", number, name)


def _shown(value: Any) -> str:
    return repr(value)[:80]
