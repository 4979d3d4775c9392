"""Messages that nobody should send: seeded, of every kind that a reader might stumble over."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from typing import Any

import msgpack

from shared.subjects import Subjects

MAX_BYTES = 900_000  # below max_payload


def _array_head(length: int) -> bytes:
    return b"\xdd" + length.to_bytes(4, "big")


def _filled(head: bytes, element: bytes, num_bytes: int) -> bytes:
    count = (num_bytes - len(head) - 5) // len(element)
    return head + _array_head(count) + element * count


BOMBS = {
    "deep lists": b"\x91" * MAX_BYTES,
    "deep maps": b"\x81\xa1a" * (MAX_BYTES // 3),
    "many lists": _filled(b"\x94\x02\xa1w\x01", b"\x90", MAX_BYTES),
    "many maps": _filled(b"\x94\x02\xa1w\x01", b"\x80", MAX_BYTES),
    "many entries": _filled(b"\x94\x02\xa1w\x01", b"\x94\xa1r\x05\x00\x90", MAX_BYTES),
    "many chunks": _filled(b"\x93\x02\xa1d", b"\x94\xa1r\x05\x00\xa0", MAX_BYTES),
    "many times": _filled(b"\x94\x02\xa1w\x01", b"\xd6\xff0123", MAX_BYTES),
    "many keys": msgpack.packb({"v": 2} | {f"k{i}": 0 for i in range(100_000)}),
    "more than there is": _array_head(0xFFFFFFFF),
    "a long text": msgpack.packb({"v": 2, "rid": "é" * 400_000}),
    "a long version": msgpack.packb({"v": "secret" * 100_000}),
}

SMALL: list[bytes] = [
    b"",
    b"\xc1",
    b"null",
    b"{}",
    b"[" * 1000,
    b"9" * 5000,
    b"\xff\xfe\x00",
    *(
        msgpack.packb(body)
        for body in (
            None,
            [],
            {},
            {"v": 2},
            {"v": 3, "rid": "0" * 32},
            {"v": 1 << 63},
            {"v": [1]},
            {"v": 2, "t": "claim"},
            {"v": 2, "t": ["end"], "prev": 1e308},
            {"v": 2, "t": "cancel", "rid": "日本語"},
            {"v": 2, "t": "fenced", "rid": "\0", "epoch": -1, "worker": ""},
            {"v": 2, "worker": "w", "hashes": b"123"},
            {"v": 2, "data": b"\xc1", "ack_subject": "$JS.ACK." + "9" * 400, "rid": "é"},
            {"v": 2, "rid": "é" * 32, "offset": 1 << 62, "subject": ""},
            [2, "w", 1, [["é" * 32, 1, 0, [1]]]],
            [2, "w", 1 << 63, [["0" * 32, 1, 0, [(1 << 32) - 1]]]],
            [2, "d", [["0" * 32, 1 << 62, 1 << 62, "x"]]],
            [3, "w", 1, []],
        )
    ),
]


def garbage(seed: int, num_random: int = 8) -> Iterator[bytes]:
    """All small ones, all bombs, and random bytes."""
    rng = random.Random(seed)
    yield from SMALL
    yield from BOMBS.values()
    for _ in range(num_random):
        yield rng.randbytes(rng.choice((1, 20, 300, 5000)))
        message = bytearray(rng.choice(SMALL) or b"\x00")
        message[rng.randrange(len(message))] = rng.randrange(256)
        yield bytes(message)


_NO_SUBJECTS = ("partition", "consumer", "consumers", "inbox_prefix")


def subjects_to_disturb(subjects: Subjects, pool: str, worker: str, frontend: str) -> list[str]:
    """Every subject that `Subjects` names, found by looking: a new one is here by itself.

    A method with a parameter of a new name fails here, and wants a value below.
    """
    values: dict[str, list[Any]] = {
        "pool": [pool, "nobodys-pool"],
        "group": ["0", "nonsense"],
        "lane": ["interactive", "batch", "interactive-1", "nonsense"],
        "job_class": ["interactive", "batch", "nonsense"],
        "rid": ["f" * 32],
        "worker": [worker, "worker-nobody"],
        "frontend_id": [frontend],
        "incarnation": [worker],
        "partition": [0],
        "batch_id": ["f" * 32],
        "line_idx": [0],
    }
    found: list[str] = []
    for name, member in inspect.getmembers(type(subjects)):
        if name.startswith("_") or name in ("prefix", "num_partitions"):
            continue
        if name == "key_buckets":
            continue  # each is a property of its own
        if isinstance(member, property):
            found += _of_property(name, getattr(subjects, name))
        elif inspect.isfunction(member) and name not in _NO_SUBJECTS:
            calls: list[list[Any]] = [[]]
            for parameter in list(inspect.signature(member).parameters)[1:]:
                calls = [[*call, value] for call in calls for value in values[parameter]]
            found += [getattr(subjects, name)(*call) for call in calls]
    return sorted({subject for subject in found if "*" not in subject})


def _of_property(name: str, value: str) -> list[str]:
    if name.endswith("_stream"):
        return []  # its subjects are named by methods
    objects = [f"$O.{value}.M.bm9uc2Vuc2U=", f"$O.{value}.C.nonsense"]
    if name == "objects_bucket":
        return objects
    if name == "files_bucket":
        return [*objects, f"$KV.{value}.anyone.file-{'f' * 32}"]
    if name == "batches_bucket":
        return [f"$KV.{value}.active.batch_{'f' * 32}", f"$KV.{value}.of.anyone.batch_{'f' * 32}"]
    if name.endswith("_bucket"):
        return [f"$KV.{value}.nonsense", f"$KV.{value}.0"]
    return [value]
