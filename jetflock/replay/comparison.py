"""Two runs of one request: where their tokens part, and by how much."""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple, Self

NAMES = ("first", "second")
_SHOWN_CHARS = 60  # of each text, around where they part
_MAX_DIFF_WORDS = 4000  # what follows them is told as it is
# Only these are ends of the model's own: others cut the run short.
OWN_ENDS = ("stop", "length")


class Comparison(NamedTuple):
    """Two runs: of each what `/v1/streams/{id}/tokens` tells."""

    first: dict[str, Any]
    second: dict[str, Any]
    num_compared: int
    parts_at: int | None  # index of the first token that differs, or that one of them lacks

    @classmethod
    def of(cls, first: dict[str, Any], second: dict[str, Any], to: int | None) -> Self:
        """`to`: so many tokens were asked for; None: all."""
        ours, theirs = first["token_ids"][:to], second["token_ids"][:to]
        num_both = min(len(ours), len(theirs))
        parts_at = next((i for i in range(num_both) if ours[i] != theirs[i]), None)
        if parts_at is None and len(ours) != len(theirs):
            parts_at = num_both
        return cls(first, second, num_both, parts_at)

    @property
    def runs(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.first, self.second

    @property
    def logprob_gaps(self) -> list[float]:
        """How much larger the logprob of each equal token is in the second run; none where one run
        has no logprobs.
        """
        num_equal = self.num_compared if self.parts_at is None else self.parts_at
        pairs = zip(self.first["logprobs"] or (), self.second["logprobs"] or (), strict=False)
        return [theirs - ours for _, (ours, theirs) in zip(range(num_equal), pairs, strict=False)]

    def facts(self) -> dict[str, Any]:
        """The comparison for a program."""
        gaps = self.logprob_gaps
        return {
            "equal": self.parts_at is None,
            "parts_at": self.parts_at,
            "num_compared": self.num_compared,
            "mean_logprob_gap": sum(gaps) / len(gaps) if gaps else None,
            "first": self.first,
            "second": self.second,
        }

    def words(self) -> str:
        """The comparison for a person."""
        gaps = self.logprob_gaps
        mean = f"logprobs differ by {sum(gaps) / len(gaps):+.4f} in the mean" if gaps else ""
        if self.parts_at is None:
            return f"{self.num_compared} tokens, all equal" + (f"; their {mean}" if mean else "")
        at = self.parts_at
        lines = [
            f"the runs part at token {at}: {at} are equal" + (f"; their {mean}" if mean else "")
        ]
        for name, run, other in zip(NAMES, self.runs, self.runs[::-1], strict=True):
            lines.append(f"  {name:6}  {_chosen(run, other, at)}")
        same = num_equal_chars(self.first["text"], self.second["text"])
        start = max(0, same - _SHOWN_CHARS // 2)
        for name, run in zip(NAMES, self.runs, strict=True):
            lines.append(f"  {name:6}  ...{run['text'][start : start + _SHOWN_CHARS]!r}")
        return "\n".join(lines)

    def diff(self) -> str:
        """Both texts in one: [-what the first alone has-]{+and the second+}."""
        ours, theirs = (re.split(r"(\s+)", run["text"]) for run in self.runs)
        told = []
        matcher = difflib.SequenceMatcher(
            None, ours[:_MAX_DIFF_WORDS], theirs[:_MAX_DIFF_WORDS], autojunk=False
        )
        for kind, i, j, k, n in matcher.get_opcodes():
            if kind == "equal":
                told += ours[i:j]
                continue
            told += [f"[-{''.join(ours[i:j])}-]"] if i < j else []
            told += [f"{{+{''.join(theirs[k:n])}+}}"] if k < n else []
        for words, mark in ((ours, "[-{}-]"), (theirs, "{{+{}+}}")):
            if rest := "".join(words[_MAX_DIFF_WORDS:]):
                told.append(mark.format(rest))
        return "".join(told)


def num_equal_chars(one: str, other: str) -> int:
    """At their beginning."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _chosen(run: dict[str, Any], other: dict[str, Any], at: int) -> str:
    """What a run has there, and what the other one thought of it."""
    if at >= len(run["token_ids"]):
        return f"ends ({run['finish_reason']})"
    token_id = run["token_ids"][at]
    told = f"token id {token_id}"
    if run["logprobs"] is not None:
        told += f", logprob {run['logprobs'][at]:.4f}"
    tops = other["top_logprobs"]
    if tops is None or at >= len(tops) or not tops[at]:
        return told
    known = dict(map(tuple, tops[at]))
    if token_id in known:
        return f"{told}; in the other run {known[token_id]:.4f}"
    return f"{told}; in the other run below {min(known.values()):.4f}"
