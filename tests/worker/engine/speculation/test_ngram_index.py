from __future__ import annotations

import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.speculation.draft_pace import MAX_WAIT, DraftPace
from worker.engine.speculation.ngram_index import NgramIndex


def continuation(token_ids: Sequence[int], max_tokens: int = 3) -> list[int]:
    return NgramIndex(2, 3).continuation(array.array("I", token_ids), max_tokens)


def by_a_scan(token_ids: Sequence[int], min_len: int, max_len: int, max_tokens: int) -> list[int]:
    for length in range(min(max_len, len(token_ids) - 1), min_len - 1, -1):
        for end in range(len(token_ids) - 1, length - 1, -1):
            if token_ids[end - length : end] == token_ids[-length:]:
                grown = list(token_ids)
                for idx in range(max_tokens):
                    grown.append(grown[end + idx])
                return grown[len(token_ids) :]
    return []


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([1, 2, 3, 1, 2, 4, 9, 1, 2], [4, 9, 1]),  # the last occurrence
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], [3, 8, 1]),  # a longer one comes first
        ([5, 1, 2, 1, 2], [1, 2, 1]),  # a loop goes on
        ([4, 4, 4], [4, 4, 4]),
        ([1, 2, 3, 2], []),  # one token is not enough
        ([1], []),
    ],
)
def test_what_followed_before(token_ids: list[int], expected: list[int]) -> None:
    assert continuation(token_ids) == expected


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(0, 2),
    st.lists(st.integers(1, 40)),
)
def test_a_growing_sequence_is_known_as_if_scanned(
    token_ids: list[int], min_len: int, num_more: int, asked_at: list[int]
) -> None:
    index = NgramIndex(min_len, min_len + num_more)
    for length in sorted({each for each in asked_at if each <= len(token_ids)}):
        known = token_ids[:length]
        assert index.continuation(array.array("I", known), 5) == by_a_scan(
            known, min_len, min_len + num_more, 5
        )


def test_wrong_guesses_become_rare_and_right_ones_long() -> None:
    pace = DraftPace(8)
    num_with_drafts = 0
    for _ in range(200):
        if num_drafts := pace.next_num_drafts():
            num_with_drafts += 1
            pace.on_result(num_drafts, 0)
    assert num_with_drafts <= 6 + 200 // MAX_WAIT
    lens = [next(num_drafts for num_drafts in iter(pace.next_num_drafts, None) if num_drafts)]
    for _ in range(4):
        pace.on_result(lens[-1], lens[-1])
        lens.append(pace.next_num_drafts())
    assert lens == [1, 2, 4, 8, 8]
    pace.on_result(8, 2)
    assert pace.next_num_drafts() == 3
