"""A text is cut where its tokens end, however they arrive."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from frontend.text.text_pieces import Piece, TextPieces
from shared.protocol.reply import TextParams
from tests.frontend.tiny_model import make_tokenizer

TOKENIZER = make_tokenizer()


def pieces_of(token_ids: list[int], cuts: list[int], params: TextParams) -> tuple[list[Piece], str]:
    pieces = TextPieces(TOKENIZER, params)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(token_ids)), len(token_ids)]
    made = []
    for start, end in itertools.pairwise(bounds):
        made += pieces.add(token_ids[start:end])
    return made + pieces.finish(), pieces.text


@given(st.text(max_size=20), st.lists(st.integers(0, 60)), st.sampled_from(["", "ab", "🙂x"]))
def test_pieces_do_not_depend_on_how_tokens_arrive(text: str, cuts: list[int], stop: str) -> None:
    token_ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    params = TextParams(stop=(stop,) if stop else ())
    pieces, whole = pieces_of(token_ids, cuts, params)
    assert (pieces, whole) == pieces_of(token_ids, [], params)
    assert (
        "".join(piece.text for piece in pieces) == whole == (text.split(stop)[0] if stop else text)
    )
    assert all(piece.text for piece in pieces)
    ends = [0, *(piece.tokens.stop for piece in pieces)]
    assert [piece.tokens.start for piece in pieces] == ends[:-1]
