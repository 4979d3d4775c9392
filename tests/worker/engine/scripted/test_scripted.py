from __future__ import annotations

import pytest

from shared.errors import ConfigError
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.sampling import Grammar, GrammarKind
from tests.worker.engine_fakes import FakeChannel, make_add
from worker.engine.scripted.scripted_engine import scripted_loop
from worker.engine_link.engine_messages import AbortRequest, EngineCommand, EngineReady, SetPaused
from worker.engine_link.scripted_config import ScriptedConfig

LENGTH = Finish(FinishReason.LENGTH)


def run_scripted(
    *commands: EngineCommand,
    later: list[tuple[float, EngineCommand]] | None = None,
    prefill_s: float = 0.02,
    token_s: float = 0.01,
    max_running: int = 4,
    max_context_len: int | None = None,
) -> FakeChannel:
    channel = FakeChannel(*commands)
    channel.later = later or []
    config = ScriptedConfig(
        scripted_prefill_s=prefill_s,
        scripted_token_s=token_s,
        scripted_token_low=100,
        scripted_token_high=200,
        max_running=max_running,
        max_context_len=max_context_len,
    )
    scripted_loop(config, channel, channel.clock).run(until_idle=True)
    return channel


def test_it_says_what_it_can_hold() -> None:
    ready = run_scripted().events[1]
    assert isinstance(ready, EngineReady)
    assert (ready.max_running, ready.vocab_size) == (4, 32000)


def test_tokens_come_at_absolute_times() -> None:
    channel = run_scripted(make_add(1, [1, 2, 3], max_tokens=4))
    assert channel.sent_at[2:] == pytest.approx([0.02, 0.03, 0.04, 0.05])
    assert all(100 <= token_id < 200 for token_id in channel.tokens()[1])
    assert channel.finishes() == {1: LENGTH}
    assert channel.steps[-1].load.num_running == 0


def test_runs_advance_in_the_same_step() -> None:
    channel = run_scripted(make_add(1, [1], max_tokens=3), make_add(2, [2], max_tokens=3))
    assert [len(step.outputs) for step in channel.steps] == [2, 2, 2]
    assert channel.tokens()[1] != channel.tokens()[2]


def test_a_later_run_joins_the_clock_of_the_others() -> None:
    later: list[tuple[float, EngineCommand]] = [(0.025, make_add(2, [2], max_tokens=2))]
    channel = run_scripted(make_add(1, [1], max_tokens=5), later=later)
    assert channel.sent_at[2:] == pytest.approx([0.02, 0.03, 0.04, 0.05, 0.06])
    assert [len(step.outputs) for step in channel.steps] == [1, 1, 1, 2, 2]


def test_a_run_waits_for_a_free_slot_by_priority() -> None:
    channel = run_scripted(
        make_add(1, [1], max_tokens=2),
        make_add(2, [2], max_tokens=2, priority=5),
        make_add(3, [3], max_tokens=2, priority=1),
        max_running=1,
        token_s=0.0,
    )
    assert [step.outputs[0].run_id for step in channel.steps] == [1, 1, 3, 3, 2, 2]


def test_a_resumed_run_makes_the_tokens_it_would_have_made() -> None:
    whole = run_scripted(make_add(1, [1, 2], max_tokens=10)).tokens()[1]
    rest = run_scripted(make_add(9, [1, 2], whole[:4], max_tokens=10)).tokens()[9]
    assert whole[:4] + rest == whole


def test_prompt_and_seed_decide_the_tokens() -> None:
    channel = run_scripted(
        make_add(1, [1, 2]), make_add(2, [1, 2]), make_add(3, [1, 3]), make_add(4, [1, 2], seed=8)
    )
    tokens = channel.tokens()
    assert tokens[1] == tokens[2]
    assert tokens[1] != tokens[3]
    assert tokens[1] != tokens[4]


def test_a_complete_output_finishes_at_once() -> None:
    channel = run_scripted(make_add(1, [1], [5, 6], max_tokens=2))
    assert channel.tokens() == {1: []}
    assert channel.finishes() == {1: LENGTH}


def test_an_aborted_run_says_nothing_more() -> None:
    later: list[tuple[float, EngineCommand]] = [(0.035, AbortRequest(1)), (0.035, AbortRequest(77))]
    channel = run_scripted(make_add(1, [1], max_tokens=100), later=later)
    assert len(channel.tokens()[1]) == 2
    assert channel.steps[-1].outputs == []
    assert channel.steps[-1].load.num_running == 0
    assert channel.steps[-1].load.num_free_tokens == channel.steps[-1].load.num_kv_tokens


def test_a_waiting_run_can_be_aborted() -> None:
    channel = run_scripted(
        make_add(1, [1], max_tokens=2), make_add(2, [2]), AbortRequest(2), max_running=1
    )
    assert list(channel.tokens()) == [1]


def test_a_pause_stops_the_clock() -> None:
    later: list[tuple[float, EngineCommand]] = [(0.025, SetPaused(True)), (1.0, SetPaused(False))]
    channel = run_scripted(make_add(1, [1], max_tokens=3), later=later)
    assert channel.sent_at[2:] == pytest.approx([0.02, 1.0, 1.01])


def test_the_context_ends_a_run_and_refuses_a_prompt() -> None:
    channel = run_scripted(
        make_add(1, [1] * 6, max_tokens=100), make_add(2, [1] * 9), max_context_len=8
    )
    assert len(channel.tokens()[1]) == 2
    assert channel.finishes()[1] == LENGTH
    assert channel.finishes()[2].reason is FinishReason.ERROR


def test_stop_tokens_end_a_run() -> None:
    tokens = run_scripted(make_add(1, [1], max_tokens=9)).tokens()[1]
    channel = run_scripted(make_add(1, [1], max_tokens=9, stop_token_ids=(tokens[2],)))
    end = tokens.index(tokens[2]) + 1
    assert channel.tokens()[1] == tokens[:end]
    assert channel.finishes()[1] == Finish(FinishReason.STOP, matched=tokens[2])


def test_an_empty_range_of_ids_is_a_configuration_error() -> None:
    config = ScriptedConfig(scripted_token_low=5, scripted_token_high=5)
    with pytest.raises(ConfigError, match=r"\[5, 5\)"):
        scripted_loop(config, FakeChannel())


def test_what_a_script_cannot_do_is_refused() -> None:
    grammar = Grammar(GrammarKind.REGEX, "a", "test")
    channel = run_scripted(make_add(1, [1], grammar=grammar))
    assert channel.finishes()[1].reason is FinishReason.ERROR
    assert "structured output" in str(channel.finishes()[1].message)
