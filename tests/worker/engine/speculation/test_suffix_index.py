from __future__ import annotations

import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.speculation.suffix_index import MAX_NEW_TOKENS, NOWHERE, SuffixIndex


def continuation(token_ids: Sequence[int], max_tokens: int = 3) -> list[int]:
    return SuffixIndex(2).continuation(array.array("I", token_ids), max_tokens)


def by_a_scan(token_ids: Sequence[int], min_len: int, max_tokens: int) -> list[list[int]]:
    """What may be said: by each earlier occurrence of the longest end that has one."""
    for length in range(len(token_ids) - 1, min_len - 1, -1):
        told = []
        for end in range(len(token_ids) - 1, length - 1, -1):
            if token_ids[end - length : end] == token_ids[-length:]:
                grown = list(token_ids)
                for idx in range(min(max_tokens, length)):
                    grown.append(grown[end + idx])
                told.append(grown[len(token_ids) :])
        if told:
            return told
    return [[]]


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4]),  # as many as the repetition is long
        ([1, 2, 3, 1, 2, 4, 9, 1, 2], [4, 9]),  # the last occurrence
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], [3, 8, 1]),  # a longer one comes first
        ([5, 1, 2, 1, 2], [1, 2]),  # a loop goes on
        ([4, 4, 4, 4], [4, 4, 4]),
        ([1, 2, 3, 2], []),  # one token is not enough
        ([1], []),
    ],
)
def test_what_followed_the_longest_repetition(token_ids: list[int], expected: list[int]) -> None:
    assert continuation(token_ids) == expected


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=60),
    st.integers(1, 3),
    st.lists(st.integers(1, 60)),
)
def test_a_growing_sequence_is_known_as_if_scanned(
    token_ids: list[int], min_len: int, asked_at: list[int]
) -> None:
    index = SuffixIndex(min_len)
    for length in sorted({each for each in asked_at if each <= len(token_ids)}):
        known = token_ids[:length]
        found = index.continuation(array.array("I", known), 5)
        assert found in by_a_scan(known, min_len, 5)


def test_a_long_prompt_is_read_over_several_steps() -> None:
    token_ids = array.array("I", [*range(MAX_NEW_TOKENS), *range(MAX_NEW_TOKENS)])
    index = SuffixIndex(2)
    assert index.continuation(token_ids, 3) == []
    assert index.continuation(token_ids, 3) == [0, 1, 2]


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 3), max_size=60))
def test_another_sequence_is_followed_while_it_grows(said: list[int], others: list[int]) -> None:
    index, place, num_said = SuffixIndex(1), NOWHERE, 0
    for num_followed, token_id in enumerate(others, start=1):
        if num_said < len(said):
            index.add(said[num_said])
            num_said += 1
        length = place.length
        place = index.follow(place, token_id)
        assert place.length <= length + 1
        tail = others[num_followed - place.length : num_followed]
        end = index.end_of(place)
        assert said[end - place.length : end] == tail
        if num_said == len(said) and num_followed > 2 * len(said):  # what is followed is all there
            longer = others[num_followed - place.length - 1 : num_followed]
            occurs = any(longer == said[at : at + len(longer)] for at in range(len(said)))
            assert not occurs or len(longer) > num_followed or place.length == num_followed
