"""How a program of ours ends."""

from __future__ import annotations

from pathlib import Path

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


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary, broken = tmp_path / "binary.yaml", tmp_path / "broken.yaml"
    binary.write_bytes(b"\xff\xfe")
    broken.write_text("port: [")
    for argv, words in {
        ("--config", "/nope.yaml"): "cannot read --config /nope.yaml: No such file or directory",
        ("--config", f"{tmp_path}"): f"cannot read --config {tmp_path}: Is a directory",
        (f"--config={binary}",): f"--config {binary} is no YAML: ",
        ("--config", f"{broken}"): f"--config {broken} is no YAML: while parsing a flow node",
        ("--config",): "--config needs the name of a YAML file",
    }.items():
        with pytest.raises(SystemExit) as ended:
            _program(ValueError("never run")).run(argv)
        assert ended.value.code == USAGE
        assert capsys.readouterr().err.startswith(f"jetflock test: {words}")
