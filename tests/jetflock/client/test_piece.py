from __future__ import annotations

from typing import Any

from jetflock.client.piece import Piece, pieces_of
from jetflock.client.result import TokenLogprob


def test_logprobs_of_a_chat_event() -> None:
    rival = {"token": "b", "logprob": -2.0, "bytes": [98]}
    item = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [rival]}
    choice: dict[str, Any] = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
    (piece,) = pieces_of({"choices": [choice | {"logprobs": {"content": [item]}}]})
    assert piece == Piece(
        0, "a", None, logprobs=(TokenLogprob("a", -0.5, top=(TokenLogprob("b", -2.0),)),)
    )
    (piece,) = pieces_of({"choices": [choice | {"logprobs": None}]})
    assert piece.logprobs == ()


def test_logprobs_of_a_native_event() -> None:
    meta: dict[str, Any] = {
        "finish_reason": None,
        "output_token_logprobs": [[-0.5, 7, "a"]],
        "output_top_logprobs": [[[-0.5, 7, "a"], [-2.0, 8, "b"]]],
        "input_token_logprobs": [[None, 1, "<s>"], [-1.0, 2, "x"]],
    }
    (piece,) = pieces_of({"text": "a", "output_ids": [7], "meta_info": meta})
    top = (TokenLogprob("a", -0.5, 7), TokenLogprob("b", -2.0, 8))
    assert piece.logprobs == (TokenLogprob("a", -0.5, 7, top),)
    assert piece.prompt_logprobs == (TokenLogprob("<s>", None, 1), TokenLogprob("x", -1.0, 2))
