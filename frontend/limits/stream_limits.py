"""Whether what a request will write still fits: the log, results and the stores have limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shared.errors import QueueFull
from shared.storage.stream_room import ADMISSION_MARK, StreamRoom
from shared.subjects import Subjects

_RETRY_AFTER_S = 30


class _Store(NamedTuple):
    """A stream as a client is told of it."""

    stream: str
    name: str
    flag: str


class StreamLimits:
    """Above the first mark nothing new comes in: what is there keeps the rest to end in."""

    def __init__(self, room: StreamRoom, subjects: Subjects) -> None:
        self._room = room
        self._of_requests = (
            _Store(subjects.tokens_stream, "token log", "--log-max-bytes"),
            _Store(subjects.results_stream, "store of results", "--results-max-bytes"),
            # Whose client goes writes there that nobody reads it any more: else it could not end.
            _bucket(subjects.attached_bucket, "store of requests' readers"),
        )
        self._of_prompts = (
            _Store(
                f"OBJ_{subjects.objects_bucket}",
                "store of long prompts and images",
                "--objects-max-bytes",
            ),
        )
        self._of_keys = (_bucket(subjects.idempotency_bucket, "store of idempotency keys"),)
        self._of_files = (
            _Store(f"OBJ_{subjects.files_bucket}", "store of files", "--files-max-bytes"),
            _bucket(subjects.files_bucket, "store of files' records"),
        )
        self._of_batches = (
            _Store(subjects.batch_stream, "store of batch lines", "--files-max-bytes"),
            _bucket(subjects.batches_bucket, "store of batches' records"),
        )

    def check(self) -> None:
        """Checks the room for a request. Raises QueueFull."""
        self._check(self._of_requests)

    def check_prompt(self) -> None:
        """Checks the room for a prompt that does not travel inside its request.

        Raises QueueFull.
        """
        self._check(self._of_prompts)

    def check_key(self) -> None:
        """Checks the room for an idempotency key that stands for nothing yet. Raises QueueFull."""
        self._check(self._of_keys)

    def check_file(self) -> None:
        """Checks the room for a file from outside: outputs of batches have what is left.

        Raises QueueFull.
        """
        self._check(self._of_files)

    def check_batch(self) -> None:
        """Checks the room for a batch: its lines have keys, and its output becomes files.

        Raises QueueFull.
        """
        self._check((*self._of_requests, *self._of_keys, *self._of_batches, *self._of_files))

    @property
    def why_full(self) -> list[str]:
        """A sentence for each stream that keeps requests out."""
        return [
            f"the {store.name} is {self._room.usage(store.stream):.0%} full ({store.flag})"
            for store in self._of_requests
            if self._room.usage(store.stream) >= ADMISSION_MARK
        ]

    def _check(self, stores: Iterable[_Store]) -> None:
        if not self._room.is_above(ADMISSION_MARK):
            return
        for store in stores:
            usage = self._room.usage(store.stream)
            if usage >= ADMISSION_MARK:
                raise QueueFull(
                    f"The {store.name} is {usage:.0%} full ({store.flag}), and what is left is "
                    "kept for requests that have been accepted; try again later.",
                    _RETRY_AFTER_S,
                )


def limited_streams(subjects: Subjects) -> tuple[str, ...]:
    """All that `StreamLimits` asks about."""
    return (
        subjects.tokens_stream,
        subjects.results_stream,
        subjects.batch_stream,
        f"OBJ_{subjects.objects_bucket}",
        f"OBJ_{subjects.files_bucket}",
        *(f"KV_{bucket}" for bucket in subjects.key_buckets),
    )


def _bucket(bucket: str, name: str) -> _Store:
    return _Store(f"KV_{bucket}", name, "--keys-max-bytes")
