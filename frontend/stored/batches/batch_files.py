"""The output and the error file of a batch, in the order of its input."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from typing import IO

from frontend.stored.batches.batch_input import BatchInput
from frontend.stored.batches.batch_record import BatchRecord, BatchUsage, Counts
from frontend.stored.batches.batch_results import BatchResults
from frontend.stored.batches.line_runner import LineRunner
from frontend.stored.files.file_record import MADE
from frontend.stored.files.file_store import FileStore
from shared.errors import MalformedMessage


@dataclass(frozen=True, slots=True)
class Written:
    """What the record is to say; no file without lines."""

    counts: Counts
    usage: BatchUsage
    num_unfinished: int
    output_file_id: str | None
    error_file_id: str | None


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a line in the temporary file."""

    offset: int
    num_bytes: int
    is_error: bool


async def write_files(
    results: BatchResults,
    files: FileStore,
    runner: LineRunner,
    record: BatchRecord,
    lines: BatchInput,
) -> Written:
    """Store both under the first ids in `record.files`. Raises RequestError or BrokerError."""
    with (
        tempfile.TemporaryFile() as kept,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        places = await _fetch(results, record.id, kept)
        counts, usage = await asyncio.to_thread(
            _sort, kept, places, output, errors, runner, record, lines
        )
        stored = [
            await _store(files, record, file_id, suffix, content)
            for file_id, suffix, content in zip(
                record.files[:2], ("output", "error"), (output, errors), strict=True
            )
        ]
    num_unfinished = counts.total - counts.completed - counts.failed
    return Written(counts, usage, num_unfinished, *stored)


async def _fetch(results: BatchResults, batch_id: str, kept: IO[bytes]) -> dict[int, _Place]:
    """All results, one behind the other as they ended."""
    places: dict[int, _Place] = {}
    async for result in results.all(batch_id):
        try:
            text = await results.text(result)
        except MalformedMessage:
            continue  # told as a line without an answer
        places[result.line_idx] = _Place(kept.tell(), len(text), result.is_error)
        kept.write(text)
    return places


def _sort(
    kept: IO[bytes],
    places: dict[int, _Place],
    output: IO[bytes],
    errors: IO[bytes],
    runner: LineRunner,
    record: BatchRecord,
    lines: BatchInput,
) -> tuple[Counts, BatchUsage]:
    """Slow: off the event loop."""
    usage = BatchUsage()
    code, message = "batch_expired", "It could not be run before the completion window ended."
    if record.cancelling_at is not None:
        code, message = "batch_cancelled", "The batch was cancelled before it was run."
    num_completed = num_failed = 0
    for idx in range(len(lines)):
        place = places.get(idx)
        if place is None:
            errors.write(runner.unfinished(idx, lines.line(idx).custom_id, code, message) + b"\n")
            continue
        kept.seek(place.offset)
        text = kept.read(place.num_bytes)
        (errors if place.is_error else output).write(text + b"\n")
        if not place.is_error:
            usage = usage.with_line(text)
        num_failed += place.is_error
        num_completed += not place.is_error
    return Counts(len(lines), num_completed, num_failed), usage


async def _store(
    files: FileStore, record: BatchRecord, file_id: str, suffix: str, content: IO[bytes]
) -> str | None:
    if content.tell() == 0:
        return None
    content.seek(0)
    name = f"{record.id}_{suffix}.jsonl"
    await files.add(file_id, record.owner, name, MADE, content, record.output_ttl_s)
    return file_id
