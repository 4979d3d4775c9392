"""The checker sees what it is there for: a lost, a repeated, a gapped and a wrong stream."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bench.chaos.checker import check, check_same
from bench.chaos.transcript import Transcript
from bench.chaos.violation import ViolationKind
from frontend.text.event_id import Mark
from shared.protocol.text import checksum
from shared.subjects import new_rid

RID = new_rid()
PIECES = ["Once ", "upon ", "a time ", "there was ", "a fox."]


def event(text: str, finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}
    return {"choices": [{**choice, **fields}]}


def event_id(text: str, position: int) -> str:
    return f"{RID}.{Mark(position, len(text), checksum(text))}"


def story(pieces: list[str] = PIECES) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream, each with its id."""
    events = [
        (event_id("".join(pieces[:position]), position), event(pieces[position - 1]))
        for position in range(1, len(pieces) + 1)
    ]
    last_id = event_id("".join(pieces), len(pieces))
    usage = {"prompt_tokens": 3, "completion_tokens": len(pieces)}
    return [*events, (last_id, event("", "stop")), (last_id, {"choices": [], "usage": usage})]


def told(events: list[tuple[str, dict[str, Any]]], *, is_done: bool = True) -> Transcript:
    transcript = Transcript()
    for one_id, one in events:
        transcript.take(one_id, one)
    transcript.is_done = is_done
    return transcript


def kinds(transcript: Transcript) -> list[ViolationKind]:
    return [violation.kind for violation in check(transcript, told(story()))]


def test_a_whole_stream_is_well() -> None:
    assert kinds(told(story())) == []


def test_a_finish_that_is_told_again_is_well() -> None:
    events = story()
    assert kinds(told([*events[:6], events[5], events[6]])) == []


def test_a_stream_without_an_end_is_lost() -> None:
    assert kinds(told(story()[:3], is_done=False)) == [ViolationKind.LOST]


def test_an_event_that_comes_twice() -> None:
    events = story()
    assert kinds(told([*events[:3], events[2], *events[3:]]))[0] is ViolationKind.DUPLICATED


def test_an_event_that_is_missing() -> None:
    events = story()
    assert kinds(told([*events[:2], *events[3:]]))[0] is ViolationKind.GAP


def test_another_text_under_the_true_id() -> None:
    events = story()
    events[2] = events[2][0], event("A TIME ")
    assert kinds(told(events))[0] is ViolationKind.WRONG


def test_another_text_under_an_id_of_its_own() -> None:
    """The stream is consistent, and not the one that the request has."""
    assert kinds(told(story([*PIECES[:3], "there sat ", "a fox."]))) == [ViolationKind.WRONG]


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([*PIECES[:2], *PIECES[3:]], ViolationKind.GAP),
        ([*PIECES[:2], *PIECES[1:]], ViolationKind.DUPLICATED),
        (PIECES[:4], ViolationKind.GAP),
    ],
)
def test_the_whole_text_is_compared_too(pieces: list[str], kind: ViolationKind) -> None:
    assert kinds(told(story(pieces))) == [kind]


def test_text_behind_the_finish() -> None:
    events = story()
    more = event("!", None), event_id("".join(PIECES) + "!", 6)
    assert kinds(told([*events, (more[1], more[0])]))[0] is ViolationKind.DUPLICATED


def test_another_finish_or_usage() -> None:
    events = story()
    other_finish = [*events[:5], (events[5][0], event("", "length")), events[6]]
    other_usage = [*events[:6], (events[6][0], {"choices": [], "usage": {
        "prompt_tokens": 3, "completion_tokens": 4}})]  # fmt: skip
    assert kinds(told(other_finish)) == [ViolationKind.WRONG]
    assert kinds(told(other_usage)) == [ViolationKind.WRONG]


def test_an_error_is_told_as_such() -> None:
    transcript = told([*story()[:2], (story()[1][0], {"error": {"message": "damaged"}})])
    assert kinds(transcript) == [ViolationKind.FAILED]


def test_logprobs_count_with_the_position() -> None:
    def with_logprobs(counts: list[int]) -> Transcript:
        transcript = Transcript(has_logprobs=True)
        for position, (piece, count) in enumerate(zip(PIECES, counts, strict=True), start=1):
            logprobs = {"tokens": [piece] * count, "token_logprobs": [-1.0] * count}
            text = "".join(PIECES[:position])
            transcript.take(event_id(text, position), event(piece, logprobs=logprobs))
        return transcript

    assert with_logprobs([1, 1, 1, 1, 1]).violations == []
    assert with_logprobs([1, 0, 1, 1, 1]).violations[0].kind is ViolationKind.GAP
    assert with_logprobs([1, 2, 1, 1, 1]).violations[0].kind is ViolationKind.DUPLICATED


def test_without_a_prediction_the_stored_result_is_compared() -> None:
    transcript, stored = told(story()), told(story())
    assert check_same(transcript, stored) == []
    stored.choices = copy.deepcopy(stored.choices)
    stored.choices[0].text += " And"
    assert [one.kind for one in check_same(transcript, stored)] == [ViolationKind.GAP]
