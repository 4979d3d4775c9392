"""The text of single tokens, byte for byte: what logprobs name their tokens by."""

from __future__ import annotations

import codecs
import json
from typing import Any

from tokenizers import Tokenizer

from shared.gguf.tokens.bpe_tokenizer import byte_letters

_SPACE_MARK = "\u2581"  # of sentencepiece


class TokenTexts:
    """Bytes of each token of a tokenizer; what was asked for once is kept.

    A token may be a part of a character: its bytes are exact, its text then shows them escaped.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(
            token_id for token_id, token in self._added.items() if token.special
        )
        kinds = _decoder_kinds(tokenizer)
        letters = byte_letters() if "ByteLevel" in kinds else []
        self._byte_of_char = {letter: byte for byte, letter in enumerate(letters)}
        self._has_byte_pieces = "ByteFallback" in kinds
        self._has_space_marks = bool(kinds & {"ByteFallback", "Metaspace"})
        self._bytes: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        """b"" for an id that the tokenizer does not have."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self.compute_bytes(token_id)
        return known

    def visible_bytes_of(self, token_id: int) -> bytes:
        """The same, and nothing for a special token."""
        return b"" if token_id in self._special_ids else self.bytes_of(token_id)

    def text_of(self, token_id: int, prefix: str = "") -> str:
        """Its text; `prefix` and escaped bytes where it is no text by itself."""
        data = self.bytes_of(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in data)

    def compute_bytes(self, token_id: int) -> bytes:
        """The same, and nothing is kept: for who asks once for all."""
        added = self._added.get(token_id)
        if added is not None:
            return str(added.content).encode()
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_of_char and all(char in self._byte_of_char for char in piece):
            return bytes(self._byte_of_char[char] for char in piece)
        if self._has_byte_pieces and len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        if self._has_space_marks:
            return str(piece).replace(_SPACE_MARK, " ").encode()
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False)).encode()


class TextOffsets:
    """Where tokens begin in their text, in code points, one token after the other."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def next(self, token_id: int) -> int:
        """Takes this token; returns the number of characters that are whole before it."""
        offset = self._offset
        self._offset += len(self._decoder.decode(self._texts.visible_bytes_of(token_id)))
        return offset


def _decoder_kinds(tokenizer: Tokenizer) -> set[str]:
    decoder = tokenizer.decoder
    if decoder is None:
        return set()
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    return {state["type"], *(part["type"] for part in state.get("decoders", ()))}
