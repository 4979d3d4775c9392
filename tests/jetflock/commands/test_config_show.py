"""`jetflock config show` tells each value and who has set it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jetflock.commands.config_show import PROGRAM


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, tuple[object, str]]:
    PROGRAM.run(["show", *argv, "--json"])
    told = json.loads(capsys.readouterr().out)
    return {key: (each["value"], each["from"]) for key, each in told.items()}


def test_flag_goes_before_variable_before_file_before_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jetflock.yaml"
    file.write_text("max-running: 1\nmax-step-tokens: 1000\nlog-level: warning\n")
    monkeypatch.setenv("JETFLOCK_MAX_RUNNING", "2")
    monkeypatch.setenv("JETFLOCK_MAX_STEP_TOKENS", "2000")
    flags = ("--max-running", "3", "--config", str(file))
    told = shown(capsys, "worker", "some/model", *flags)
    assert told["max-running"] == (3, "flag")
    assert told["max-step-tokens"] == (2000, "JETFLOCK_MAX_STEP_TOKENS")
    assert told["log-level"] == ("warning", str(file))
    assert told["page-size"] == (16, "default")


def test_secrets_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JETFLOCK_API_KEY", "sk-hush")
    url = "nats://me:hush@one:1,nats://me:hush@two:2"
    flags = ("--nats-password", "hush", "--nats-url", url)
    told = shown(capsys, "frontend", *flags)
    assert "hush" not in str(told)
    assert told["api-key"] == ("***", "JETFLOCK_API_KEY")
    assert told["nats-url"] == ("nats://***@one:1,nats://***@two:2", "flag")


def test_what_the_role_would_refuse_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jetflock.yaml"
    file.write_text("prot: 1\n")
    for argv, words in {
        ("frontend", "--config", str(file)): f"Unknown key 'prot' in {file}. Did you mean port?",
        ("detok", "--log-levl", "debug"): "Did you mean --log-level?",
        ("dead",): "has no configuration to show; try serve, frontend",
    }.items():
        with pytest.raises(SystemExit) as ended:
            PROGRAM.run(["show", *argv])
        assert ended.value.code == 2
        assert words in capsys.readouterr().err
