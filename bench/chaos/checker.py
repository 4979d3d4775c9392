"""Compares what a disturbed client holds with what the undisturbed one held."""

from __future__ import annotations

from bench.chaos.transcript import Choice, Transcript
from bench.chaos.violation import Violation, ViolationKind
from shared.token_log.fold import RequestFold

_LOGPROB_TOLERANCE = 1e-3  # an incremental decode rounds otherwise than a prefill


def check(transcript: Transcript, expected: Transcript | None) -> list[Violation]:
    """All that is wrong with a stream; `expected` is None where workers may go on differently.

    What the events themselves have shown (`Transcript.violations`) is part of it.
    """
    found = list(transcript.violations)
    if transcript.error is not None:
        found.append(Violation(ViolationKind.FAILED, str(transcript.error)))
        return found
    if not transcript.is_done:
        found.append(Violation(ViolationKind.LOST, f"{transcript.rid} did not end"))
        return found
    if expected is not None:
        found += _differences(transcript, expected)
    return found


def check_same(transcript: Transcript, stored: Transcript) -> list[Violation]:
    """Whether a client holds the result that is stored: for runs without a prediction."""
    return check(transcript, None) + _differences(transcript, stored)


def check_log(transcript: Transcript, fold: RequestFold) -> list[Violation]:
    """Whether a client of one choice holds the tokens that the log says are the request's."""
    (choice,) = transcript.choices
    if choice.token_ids == fold.tokens:
        return []
    pairs = enumerate(zip(choice.token_ids, fold.tokens, strict=False))
    start = next((at for at, (a, b) in pairs if a != b), "the end")
    return [Violation(ViolationKind.WRONG, f"token {start} is not the one that the log holds")]


def _differences(transcript: Transcript, expected: Transcript) -> list[Violation]:
    if len(transcript.choices) != len(expected.choices):
        detail = f"{len(transcript.choices)} choices, not {len(expected.choices)}"
        return [Violation(ViolationKind.WRONG, detail)]
    found = []
    for have, want in zip(transcript.choices, expected.choices, strict=True):
        found += _compare(have, want)
    if transcript.usage != expected.usage:
        detail = f"usage {transcript.usage}, not {expected.usage}"
        found.append(Violation(ViolationKind.WRONG, detail))
    return found[:1]


def _compare(have: Choice, want: Choice) -> list[Violation]:
    if have.text != want.text:
        return [_text_difference(have.text, want.text)]
    if have.finish_reason != want.finish_reason:
        detail = f"finish {have.finish_reason}, not {want.finish_reason}"
        return [Violation(ViolationKind.WRONG, detail)]
    if have.token_ids != want.token_ids:
        detail = f"{len(have.token_ids)} ids, not the {len(want.token_ids)} of the undisturbed run"
        return [Violation(ViolationKind.WRONG, detail)]
    if len(have.logprobs) != len(want.logprobs):
        missing = len(have.logprobs) < len(want.logprobs)
        kind = ViolationKind.GAP if missing else ViolationKind.DUPLICATED
        return [Violation(kind, f"{len(have.logprobs)} logprobs, not {len(want.logprobs)}")]
    for (token, value), (other, expected) in zip(have.logprobs, want.logprobs, strict=True):
        if token != other or abs(value - expected) > _LOGPROB_TOLERANCE:
            detail = f"logprob {value} of {token!r}, not {expected} of {other!r}"
            return [Violation(ViolationKind.WRONG, detail)]
    return []


def _text_difference(have: str, want: str) -> Violation:
    """Names the difference: a stretch that is missing, one that came twice, or another text."""
    start = next(
        (at for at, (a, b) in enumerate(zip(have, want, strict=False)) if a != b),
        min(len(have), len(want)),
    )
    rest_have, rest_want = have[start:], want[start:]
    where = f"at character {start}: {rest_have[:40]!r}, not {rest_want[:40]!r}"
    if len(have) < len(want) and rest_want.endswith(rest_have):
        return Violation(ViolationKind.GAP, where)
    if len(have) > len(want) and rest_have.endswith(rest_want):
        return Violation(ViolationKind.DUPLICATED, where)
    return Violation(ViolationKind.WRONG, where)
