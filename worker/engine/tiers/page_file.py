"""A page of keys and values as a file: what it says of itself, checked before it is believed."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence

import msgspec
import numpy as np

from worker.engine.tiers.kv_tier import PageContent

LAYOUT_VERSION = 1
CHECKSUM_BYTES = hashlib.sha256().digest_size
_MAX_MORE_BYTES = 4096  # that another engine's may have, and is still read to tell what it is


class PageIdentity(msgspec.Struct, frozen=True, array_like=True):
    """What all pages of one engine have in common: of another, none is taken."""

    revision: str  # of the model, with all that rounds or changes what it computes
    code: bytes  # a digest of the engine's code: another build may add in another order
    kernel_set: str
    dtype: str  # of keys and values: int8 has its scales in the page
    groups: tuple[tuple[int, int, int, int], ...]  # layers, heads, head_dim and vectors of each
    page_size: int
    rank: int = 0
    num_ranks: int = 1  # that share the heads
    layout: int = LAYOUT_VERSION

    @property
    def mark(self) -> str:
        """In the names of its files."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:16]


class PageHead(msgspec.Struct, frozen=True, array_like=True):
    """What stands before the content. The chain covers the namespace (model, adapter, cache salt,
    tenant) and every token, image and embedding up to the page's end.
    """

    identity: PageIdentity
    chain: bytes

    def to_bytes(self) -> bytes:
        data = msgspec.msgpack.encode(self)
        return len(data).to_bytes(4, "little") + data


class RejectedPage(Exception):
    """It is not what was wanted, or not what was written; `reason` is one of `REJECT_REASONS`."""

    def __init__(self, reason: str, told: str) -> None:
        super().__init__(told)
        self.reason = reason


def page_parts(head: PageHead, content: PageContent) -> Sequence[memoryview]:
    """A file's, in order: head, content, and a checksum of both."""
    data = head.to_bytes()
    digest = hashlib.sha256(data)
    digest.update(content.data)
    return memoryview(data), content.data, memoryview(digest.digest())


def read_page(file: io.FileIO, head: PageHead, num_page_bytes: int) -> PageContent:
    """Raises RejectedPage, OSError."""
    num_bytes = page_bytes(head, num_page_bytes)
    data = np.empty(num_bytes + _MAX_MORE_BYTES, np.uint8)
    view, num_read = data.data, 0
    while num := file.readinto(view[num_read:]):
        num_read += num
    return check_page(data[:num_read], head, num_page_bytes)


def page_bytes(head: PageHead, num_page_bytes: int) -> int:
    """How long a page with that much content is as it is written and sent."""
    return len(head.to_bytes()) + num_page_bytes + CHECKSUM_BYTES


def check_page(data: PageContent, head: PageHead, num_page_bytes: int) -> PageContent:
    """What it holds, as it was written or sent. Raises RejectedPage."""
    expected, num_read = head.to_bytes(), len(data)
    start, end = len(expected), len(expected) + num_page_bytes
    num_bytes = end + CHECKSUM_BYTES
    view = data.data
    body, checksum = view[: max(0, num_read - CHECKSUM_BYTES)], view[-CHECKSUM_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        reason = "truncated" if num_read < num_bytes else "damaged"
        raise RejectedPage(reason, f"{num_read} bytes of {num_bytes}, with another checksum")
    if body[:start] != expected:
        raise _difference(bytes(body), head)
    if num_read != num_bytes:
        raise RejectedPage("foreign", f"it has {num_read} bytes, not {num_bytes}")
    return data[start:end]


def _difference(data: bytes, head: PageHead) -> RejectedPage:
    """Between a file that is whole and what was wanted."""
    try:
        found = msgspec.msgpack.decode(
            data[4 : 4 + int.from_bytes(data[:4], "little")], type=PageHead
        )
    except msgspec.DecodeError as exc:
        return RejectedPage("foreign", f"its head cannot be read: {exc}")
    for name in PageIdentity.__struct_fields__:
        theirs, ours = getattr(found.identity, name), getattr(head.identity, name)
        if theirs != ours:
            return RejectedPage("foreign", f"its {name} is {theirs!r}, not {ours!r}")
    return RejectedPage("other_prefix", "it is of another text or namespace")
