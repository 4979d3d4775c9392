"""How a program of ours ends."""

# No `from __future__ import annotations` here: cyclopts reads the types of parameters.

from pathlib import Path
from typing import Annotated

import pytest

from shared.cli.program import USAGE, Program
from shared.config import FLAT, ClusterConfig
from shared.errors import ConfigError

DEFAULTS = ClusterConfig()


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


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--max-deadline-s", "nan"), "max_deadline_s is nan, must be a number from 0 on"),
        (("--files-ttl-s=inf",), "files_ttl_s is inf, must be a number from 0 on"),
        (("--queue-max-msgs=-1",), "queue_max_msgs is -1, must be a number from 0 on"),
        (("--metrics-port", "99999"), "metrics_port is 99999, must be at most 65535"),
    ],
)
def test_a_number_that_no_role_can_use_is_named(
    argv: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(config: Annotated[ClusterConfig, FLAT] = DEFAULTS) -> None:
        """Run with it."""

    with pytest.raises(SystemExit) as ended:
        Program(name="jetflock test", summary="Runs.", main=main).run(argv)
    assert ended.value.code == USAGE
    assert capsys.readouterr().err == f"jetflock test: {told}\n"
