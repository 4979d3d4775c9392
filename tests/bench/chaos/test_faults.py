"""Which faults strike beside how many nats-servers, and what is said of names that are none."""

from __future__ import annotations

import pytest

from bench.chaos.__main__ import chosen_faults, run
from bench.chaos.faults import FAULTS, faults_of
from shared.errors import ConfigError


def test_one_server_and_three_share_the_faults_of_roles() -> None:
    one, three = faults_of(1), faults_of(3)
    assert "worker_kill" in one.keys() & three.keys()
    assert "broker_kill" in one.keys() - three.keys()
    assert "quorum_cut" in three.keys() - one.keys()
    assert one.keys() | three.keys() == FAULTS.keys()


def test_all_faults_but_those_left_out() -> None:
    assert set(chosen_faults("all", "flipped_byte", 1)) == faults_of(1).keys() - {"flipped_byte"}
    assert set(chosen_faults("all", "flipped_byte", 3)) == faults_of(3).keys()
    assert chosen_faults("leader_cut,worker_kill", "", 3) == ["leader_cut", "worker_kill"]


def test_a_fault_of_a_cluster_needs_one() -> None:
    with pytest.raises(ConfigError, match="--faults with --servers 1 has 'leader_cut'; there are"):
        chosen_faults("leader_cut", "", 1)
    with pytest.raises(ConfigError, match="--leave-out has 'power_cut'; there are"):
        chosen_faults("all", "power_cut", 3)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--faults", "worker_kil"], "'worker_kil'"),
        (["--leave-out", "power_cut"], "'power_cut'"),
        (["--control", "fencing", "--servers", "3"], "--servers 1"),
    ],
)
def test_a_wrong_value_is_one_sentence_and_status_2(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert named in said.err
    assert said.err.count("\n") == 1
