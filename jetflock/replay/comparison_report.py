"""What many comparisons say together: how often the runs part, where, and how fast they were."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from jetflock.replay.comparison import NAMES


@dataclass(slots=True)
class _Runs:
    """The first runs, or the second ones: numbers alone."""

    ttft_s: list[float] = field(default_factory=list)  # inside the worker, its queue included
    token_s: list[float] = field(default_factory=list)  # from one token to the next
    num_tokens: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)

    def add(self, run: dict[str, Any]) -> None:
        num_tokens = run["num_tokens"]
        self.num_tokens.append(num_tokens)
        self.num_prompt_tokens += run["num_prompt_tokens"]
        self.finish_reasons[run["finish_reason"] or "none"] += 1
        if (times := run["times"]) is None:
            return
        self.ttft_s.append(times["queue_s"] + times["prefill_s"])
        if num_tokens > 1:
            self.token_s.append(times["decode_s"] / (num_tokens - 1))

    def facts(self) -> dict[str, Any]:
        return {
            "ttft_s": {"p50": at_share(self.ttft_s, 0.5), "p95": at_share(self.ttft_s, 0.95)},
            "token_s": {"p50": at_share(self.token_s, 0.5), "p95": at_share(self.token_s, 0.95)},
            "mean_num_tokens": statistics.fmean(self.num_tokens) if self.num_tokens else None,
            "finish_reasons": dict(self.finish_reasons.most_common()),
        }


class ComparisonReport:
    """Entries of a journal, summed up as they come."""

    def __init__(self) -> None:
        self.num_compared = 0
        self.num_failed = 0
        self.num_skipped = 0
        self._num_equal = 0
        self._parts_at: list[int] = []
        self._gap_sum = 0.0  # of logprobs, over equal tokens
        self._num_gaps = 0
        self._failures: Counter[str] = Counter()
        self._runs = (_Runs(), _Runs())

    def add(self, entry: dict[str, Any]) -> None:
        self.num_skipped += entry.get("skipped", 0)
        if "failed" in entry:
            self.num_failed += 1
            self._failures[entry["failed"]] += 1
        if "equal" not in entry:
            return
        self.num_compared += 1
        self._num_equal += entry["equal"]
        num_equal_tokens = entry["num_compared"]
        if entry["parts_at"] is not None:
            self._parts_at.append(num_equal_tokens := entry["parts_at"])
        if (gap := entry["mean_logprob_gap"]) is not None:
            self._gap_sum += gap * num_equal_tokens
            self._num_gaps += num_equal_tokens
        for name, runs in zip(NAMES, self._runs, strict=True):
            runs.add(entry[name])

    @property
    def num_made_tokens(self) -> int:
        """The tokens of the second runs and of their prompts: what the comparison has cost."""
        return sum(self._runs[1].num_tokens) + self._runs[1].num_prompt_tokens

    def facts(self) -> dict[str, Any]:
        """The report for a program."""
        return {
            "num_compared": self.num_compared,
            "num_failed": self.num_failed,
            "num_skipped": self.num_skipped,
            "share_equal": self._num_equal / self.num_compared if self.num_compared else None,
            "parts_at": {
                "p05": at_share(self._parts_at, 0.05),
                "p50": at_share(self._parts_at, 0.5),
            },
            "mean_logprob_gap": self._gap_sum / self._num_gaps if self._num_gaps else None,
            "num_made_tokens": self.num_made_tokens,
            "failures": dict(self._failures.most_common(5)),
            **{name: runs.facts() for name, runs in zip(NAMES, self._runs, strict=True)},
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """The rows for a person: what, then the figure of both runs together or of each."""
        facts = self.facts()
        rows = [("compared", str(self.num_compared), "")]
        if self.num_failed:
            rows.append(("failed", str(self.num_failed), ""))
        if self.num_skipped:
            rows.append(("left out, too old", str(self.num_skipped), ""))
        if not self.num_compared:
            return rows
        rows.append(("equal", f"{self._num_equal} ({facts['share_equal']:.1%})", ""))
        if self._parts_at:
            parts = facts["parts_at"]
            told = f"token {parts['p50']}, 5% before {parts['p05']}"
            rows.append(("first other token, p50", told, ""))
        if self._num_gaps:
            told = f"{facts['mean_logprob_gap']:+.4f} over {self._num_gaps} equal tokens"
            rows.append(("mean logprob difference", told, ""))
        rows.append(("", *NAMES))
        both = (facts["first"], facts["second"])
        for field_name, name in (("ttft_s", "to the first token"), ("token_s", "token to token")):
            for percentile in ("p50", "p95"):
                one, other = (_ms(each[field_name][percentile]) for each in both)
                rows.append((f"{name}, {percentile}", one, other))
        one, other = (f"{each['mean_num_tokens']:.1f}" for each in both)
        rows.append(("tokens, mean", one, other))
        for reason in {**both[0]["finish_reasons"], **both[1]["finish_reasons"]}:
            one, other = (str(each["finish_reasons"].get(reason, 0)) for each in both)
            rows.append((f"ended by {reason}", one, other))
        return rows

    def words(self) -> str:
        """The rows, and why some failed."""
        rows = self.rows()
        width = max(len(row[0]) for row in rows) + 2
        second = max((len(row[1]) for row in rows if row[2]), default=0) + 2
        lines = [f"{what:{width}}{one:{second}}{other}".rstrip() for what, one, other in rows]
        lines += [f"failed {num} times: {why}" for why, num in self._failures.most_common(5)]
        return "\n".join(lines)


def at_share(values: list[Any], share: float) -> Any:
    """The value below which this share of them lies, or None without any."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"
