"""The texts of what a beam search has found."""

from __future__ import annotations

import msgspec
from tokenizers import Tokenizer

from shared.protocol.finish import Beam, Finish
from shared.protocol.reply import TextParams
from shared.protocol.token_ids import unpack_token_ids
from shared.token_log.visible_text import TokenizerDecoder, VisibleText


def with_texts(finish: Finish, tokenizer: Tokenizer, params: TextParams) -> Finish:
    """The same, each beam with the text that a client would have seen grow."""
    beams = tuple(
        msgspec.structs.replace(beam, text=_text(beam, tokenizer, params)) for beam in finish.beams
    )
    return msgspec.structs.replace(finish, beams=beams)


def _text(beam: Beam, tokenizer: Tokenizer, params: TextParams) -> str:
    visible = VisibleText(TokenizerDecoder(tokenizer, params), params)
    for token_id in unpack_token_ids(beam.token_ids):
        visible.add(token_id)
    visible.finish()
    return visible.text
