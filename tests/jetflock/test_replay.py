"""Comparisons of runs, their journal, report and page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jetflock.commands.replay import ReplayConfig
from jetflock.commands.shadow import ShadowConfig
from jetflock.replay.comparison import Comparison
from jetflock.replay.journal import Journal
from jetflock.replay.report_page import write_page
from jetflock.replay.series import seconds_of, share_of
from shared.errors import ConfigError

HEAD = {"journal": 1, "of": "a", "model": "b", "share": 0.5}
HOSTILE = "</pre><script>alert(1)</script>&\"'"


def run_of(text: str, **fields: Any) -> dict[str, Any]:
    """A token a character, the n-th with the logprob -n / 10."""
    return {
        "id": "0" * 32,
        "choice": 0,
        "model": "m",
        "num_prompt_tokens": 7,
        "token_ids": [ord(each) for each in text],
        "logprobs": [-idx / 10 for idx in range(len(text))],
        "top_logprobs": None,
        "text": text,
        "finish_reason": "stop",
        "num_cached_tokens": 0,
        "times": {"queue_s": 0.1, "prefill_s": 0.2, "decode_s": 0.01 * (len(text) - 1)},
        **fields,
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "to", "parts_at", "words"),
    [
        ("abc", "abc", None, None, "3 tokens, all equal; their logprobs differ by +0.0000"),
        ("abc", "abd", None, 2, "token id 99, logprob -0.2000"),
        ("abc", "ab", None, 2, "second  ends (stop)"),
        ("abc", "abd", 2, None, "2 tokens, all equal"),
        ("", "a", None, 0, "first   ends (stop)"),
    ],
)
def test_runs_part_at_the_first_other_token(
    ours: str, theirs: str, to: int | None, parts_at: int | None, words: str
) -> None:
    comparison = Comparison.of(run_of(ours), run_of(theirs), to)
    assert comparison.parts_at == parts_at
    assert words in comparison.words()


def test_each_token_is_weighed_by_both_models() -> None:
    second = run_of(
        "abX",
        logprobs=[-0.5, -0.1, -1.0],
        top_logprobs=[[[97, -0.5]], [[98, -0.1]], [[88, -1.0], [99, -1.5]]],
    )
    first = run_of("abc", top_logprobs=[[[97, 0.0]], [[98, -0.1]], [[99, -0.2], [100, -3.0]]])
    comparison = Comparison.of(first, second, None)
    assert comparison.facts()["mean_logprob_gap"] == pytest.approx(-0.25)
    assert "token id 99, logprob -0.2000; in the other run -1.5000" in comparison.words()
    assert "token id 88, logprob -1.0000; in the other run below -3.0000" in comparison.words()
    assert Comparison.of(run_of("a", logprobs=None), second, 1).logprob_gaps == []


def test_a_diff_has_all_of_both_texts() -> None:
    first, second = run_of("a big red dog ran"), run_of("a small red dog")
    told = Comparison.of(first, second, None).diff()
    assert told == "a [-big-]{+small+} red dog[- ran-]"


def test_a_journal_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    equal = Comparison.of(run_of("abc"), run_of("abc"), None)
    with Journal(path, HEAD) as journal:
        journal.add_since(17)
        journal.add(("r1", 0), equal)
        journal.add(("r2", 1), Comparison.of(run_of("abc"), run_of("axcd"), None))
        journal.add_failure(("r3", 0), "gone")
        journal.add_cursor("jf.9", 2)
        facts = journal.report.facts()
    assert path.stat().st_mode & 0o077 == 0
    with path.open("ab") as file:
        file.write(b'{"id": "r4", "cho')  # kill -9
    with Journal(path, HEAD) as journal:
        assert journal.done == {("r1", 0), ("r2", 1), ("r3", 0)}
        assert journal.query("a") == {"model": "a", "since": 17, "after": "jf.9"}
        assert journal.report.facts() == facts
        journal.add(("r4", 0), equal)
        assert [entry["id"] for entry in journal.entries()] == ["r1", "r2", "r4"]
    assert (facts["num_compared"], facts["num_failed"], facts["num_skipped"]) == (2, 1, 2)
    assert facts["share_equal"] == 0.5
    assert facts["parts_at"]["p50"] == 1
    assert facts["num_made_tokens"] == 3 + 4 + 2 * 7
    assert facts["first"]["ttft_s"]["p50"] == pytest.approx(0.3)
    assert facts["second"]["finish_reasons"] == {"stop": 2}
    with pytest.raises(ConfigError, match="name another file"):
        Journal(path, {**HEAD, "share": 0.1})
    path.write_text(json.dumps(HEAD) + "\nrubbish\n")
    with pytest.raises(ConfigError, match="line 2"):
        Journal(path, HEAD)


def test_the_page_shows_texts_and_runs_none(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl", HEAD) as journal:
        hostile = run_of(f"ab{HOSTILE}", model=HOSTILE)
        journal.add((HOSTILE, 0), Comparison.of(run_of("abc"), hostile, None))
        write_page(tmp_path / "page.html", journal, HOSTILE)
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "default-src &#x27;none&#x27;" in page
    assert "<pre>ab<mark>&lt;/pre&gt;&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("100%", 1.0), ("1", 1.0)]
)
def test_a_share(text: str, share: float) -> None:
    assert share_of("share", text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "0", "101%", "x", "-1%", "nan"])
def test_no_share_and_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="share is"):
        share_of("share", text)
    with pytest.raises(ConfigError, match="since is"):
        seconds_of("since", text)
    assert seconds_of("since", "15m") == 900


def test_flags_of_one_are_not_of_many() -> None:
    for config, request_id, wrong in (
        (ReplayConfig(), "", "or --since"),
        (ReplayConfig(since="1h"), "x", "or --since"),
        (ReplayConfig(sample="1%"), "x", "--sample"),
        (ReplayConfig(since="1h", to=3), "", "--to"),
        (ReplayConfig(top=21), "x", "top is 21"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            config.check(request_id)
    for shadow, wrong in (
        (ShadowConfig(model="m"), "--of"),
        (ShadowConfig(of="m"), "--model"),
        (ShadowConfig(of="m", model="m"), "both 'm'"),
        (ShadowConfig(of="m", model="n", concurrency=0), "concurrency is 0"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            shadow.check()
