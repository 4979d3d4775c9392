"""How a program of ours ends."""

from __future__ import annotations

import pytest

from shared.cli.program import USAGE, Program
from shared.errors import ConfigError


def _program(error: Exception) -> Program:
    def main() -> None:
        """Fail, in a task of a task."""
        raise ExceptionGroup("tasks", [ExceptionGroup("tasks", [error])])

    return Program(name="jetflock test", summary="Fails.", main=main)


def test_an_error_of_a_task_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _program(ConfigError("the log went back")).run([])
    assert ended.value.code == USAGE
    assert capsys.readouterr().err == "jetflock test: the log went back\n"


def test_others_show_where_they_came_from() -> None:
    with pytest.raises(ExceptionGroup):
        _program(ValueError("a defect")).run([])
