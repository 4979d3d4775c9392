"""Embeddings in the place of a prompt's tokens, as the engine holds them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from shared.protocol.request import EmbedsDtype
from worker.engine_link.engine_messages import AddRequest, RunEmbeds

_MARK = b"e"  # with a digest it is of another length than the mark of an image


@dataclass(frozen=True, slots=True, eq=False)
class ReqEmbeds:
    """Stand in the place of the prompt's tokens [0, num_rows)."""

    rows: npt.NDArray[np.uint8]  # [num_rows, bytes of a row]
    dtype: EmbedsDtype

    @classmethod
    def of(cls, embeds: RunEmbeds) -> Self:
        """The embeddings of one that `EmbedsRule.error` has found right."""
        row_bytes = embeds.width * embeds.dtype.num_bytes
        return cls(np.frombuffer(embeds.rows, np.uint8).reshape(-1, row_bytes), embeds.dtype)

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def values(self, first: int, end: int) -> npt.NDArray[np.float32]:
        """[end - first, width], the same numbers."""
        rows = self.rows[first:end]
        match self.dtype:
            case EmbedsDtype.FLOAT32:
                return rows.view("<f4")
            case EmbedsDtype.FLOAT16:
                return rows.view("<f2").astype(np.float32)
            case EmbedsDtype.BFLOAT16:
                return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)

    def page_mark(self, page: int, page_size: int) -> bytes:
        """What the key of a page with some of them ends with: pages of equal rows are equal, and
        none is like one of tokens.
        """
        rows = self.rows[page * page_size : (page + 1) * page_size]
        digest = hashlib.sha256(self.dtype.encode() + rows.tobytes())
        return _MARK + digest.digest()


@dataclass(frozen=True, slots=True)
class EmbedsRule:
    """Which embeddings an engine takes."""

    width: int
    obstacle: str = ""  # why it takes none

    def of(self, command: AddRequest) -> ReqEmbeds | None:
        """Those of a run that `error` has found right."""
        return None if command.embeds is None else ReqEmbeds.of(command.embeds)

    def error(self, command: AddRequest) -> str | None:
        """What is wrong with the embeddings of a run; None when nothing is."""
        embeds = command.embeds
        if embeds is None:
            return None
        if self.obstacle:
            return f"embeddings are not possible as a prompt: {self.obstacle}"
        if embeds.width != self.width:
            return f"its embeddings have {embeds.width} numbers in a row, the model {self.width}"
        num_bytes = len(command.prompt_ids) // 4 * embeds.width * embeds.dtype.num_bytes
        if len(embeds.rows) != num_bytes:
            return f"its embeddings have {len(embeds.rows)} bytes, for its tokens {num_bytes}"
        return None
