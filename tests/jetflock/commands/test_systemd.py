"""`jetflock service`: its unit is one that systemd takes, and runs what serve was given."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetflock.commands import systemd
from jetflock.commands.systemd import PROGRAM, Manager, ServiceUnit
from shared.errors import ConfigError
from tests.deploy.local_stack import REPOSITORY

JETFLOCK = Path(sys.executable).parent / "jetflock"
CHECKPOINT = REPOSITORY / "deploy" / "demo_model" / "checkpoint"
SYSTEMCTL = """\
#!/bin/sh
echo "$*" >> "$0.asked"
case "$*" in "--user disable"*) [ ! -e "$0.fails" ] || { echo "no bus" >&2; exit 1; };; esac
case "$2" in show) printf 'ActiveState=%s\\nNRestarts=2\\n' "$(cat "$0.state")";; esac
"""
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


def unit(*words: str, user: str | None = None, folder: str = "/srv") -> ServiceUnit:
    return ServiceUnit(argv=("/usr/bin/true", "serve", *words), folder=Path(folder), user=user)


def read(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def run(*argv: str) -> None:
    PROGRAM.run(argv)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's units are, on a machine without systemd."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(systemd, "_BOOTED", tmp_path / "not-booted")
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def systemctl(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down what it is asked, on a machine that systemd runs."""
    (home / "not-booted").mkdir()
    file = home / "bin" / "systemctl"
    file.parent.mkdir()
    file.write_text(SYSTEMCTL)
    file.chmod(0o755)
    file.with_suffix(".state").write_text("active")
    monkeypatch.setenv("PATH", f"{file.parent}:/usr/bin:/bin")
    return file


def asked(systemctl: Path) -> list[str]:
    return systemctl.with_suffix(".asked").read_text().splitlines()


def test_words_are_quoted_as_systemd_reads_them() -> None:
    text = unit("/my models/m", "--model-name", "100%$x", folder="/a b/50%").text()
    service = read(text)["Service"]
    assert service["ExecStart"].endswith('serve "/my models/m" --model-name 100%%$$x')
    assert service["WorkingDirectory"] == "/a b/50%%"
    with pytest.raises(ConfigError, match="line end"):
        unit("a\nExecStart=/bin/sh").text()


def test_of_a_machine_it_runs_as_somebody_with_few_rights() -> None:
    parser = read(unit(user="nobody").text())
    assert parser["Service"]["User"] == "nobody"
    assert parser["Service"]["CapabilityBoundingSet"] == ""
    assert parser["Install"]["WantedBy"] == "multi-user.target"
    assert Manager(True).unit_path == Path("/etc/systemd/system/jetflock.service")


def test_it_runs_what_serve_was_given(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HOME", "hub")
    monkeypatch.setenv("JETFLOCK_API_KEY", "sk-secret")
    (home / "m").mkdir()
    run("install", "--dry-run", "--", "m", "--port", "8001", "--shutdown-timeout-s", "300")
    out, err = capsys.readouterr()
    service = read(out)["Service"]
    assert service["ExecStart"] == f"{JETFLOCK} serve m --port 8001 --shutdown-timeout-s 300"
    assert service["WorkingDirectory"] == str(home)
    assert service["Environment"] == f'"HF_HOME={home / "hub"}"'
    assert int(service["TimeoutStopSec"]) > 300
    assert "User" not in service
    assert "not in the unit: JETFLOCK_API_KEY" in err
    assert "secret" not in out


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--", "--prot", "1"], "Unknown option: --prot. Did you mean --port?"),
        (["--", "no-such-model"], "there is no model at 'no-such-model'"),
        (["--", "--workers", "x"], "workers"),
        (["--user", "nobody"], "--user is for --system"),
        ([], "nothing was written; --dry-run prints the unit"),
    ],
)
def test_what_cannot_run_is_not_installed(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("install", *argv)
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err
    assert not Manager(False).unit_path.exists()


@pytest.mark.e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_machines_is_not_installed_where_its_user_cannot_go(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.chmod(0o700)
    for argv, complaint in {
        ("--user", "daemon"): f"daemon may not enter {home}",
        ("--user", "no-such-user"): "--user: there is no user 'no-such-user'",
        (): "give --user NAME",
    }.items():
        with pytest.raises(SystemExit):
            run("install", "--dry-run", "--system", *argv)
        assert complaint in capsys.readouterr().err


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that all may enter, and that no service has for itself alone."""
    with tempfile.TemporaryDirectory(dir="/srv") as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@pytest.mark.e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_machines_is_installed_where_its_user_can_run_it(
    public: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(public)
    monkeypatch.setattr(sys, "executable", str(public / "python"))
    program, data = public / "jetflock", public / "data"
    words = ("install", "--dry-run", "--system", "--user", "daemon", "--", str(CHECKPOINT.name))
    (public / CHECKPOINT.name).symlink_to(public)
    (public / "config.json").write_text("{}")

    def refusal(*more: str) -> str:
        with pytest.raises(SystemExit):
            run(*words, *more)
        return capsys.readouterr().err

    program.write_text("#!/root/no-such-python\n")
    program.chmod(0o755)
    assert f"daemon cannot run {program}" in refusal()
    program.write_text("#!/bin/sh\n")
    assert "daemon may not write to /usr/sbin: name a folder" in refusal()
    assert f"daemon may not write to {public}" in refusal("--data-dir", str(data))
    data.mkdir()
    shutil.chown(data, "daemon")
    run(*words, "--data-dir", str(data))
    assert read(capsys.readouterr().out)["Service"]["User"] == "daemon"


@pytest.mark.e2e
def test_its_life(systemctl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        run("status")
    assert "there is no " in capsys.readouterr().out

    run("install", "--", str(CHECKPOINT), "--port", "8001")
    told = capsys.readouterr().out
    path = Manager(False).unit_path
    assert path.is_file()
    assert "systemctl --user enable --now jetflock.service" in told
    assert "restart" not in told

    run("status", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["runs"] == f"{JETFLOCK} serve {CHECKPOINT} --port 8001"
    assert (facts["ActiveState"], facts["NRestarts"]) == ("active", "2")
    systemctl.with_suffix(".state").write_text("failed")
    with pytest.raises(SystemExit, match="1"):
        run("status")

    run("install", "--", "--port", "8002")
    assert "systemctl --user restart" in capsys.readouterr().out

    systemctl.with_suffix(".fails").touch()
    with pytest.raises(SystemExit, match="1"):
        run("uninstall")
    assert "no bus" in capsys.readouterr().err
    assert path.exists()  # what may still run stays known
    systemctl.with_suffix(".fails").unlink()
    run("uninstall")
    assert not path.exists()
    assert asked(systemctl)[-2:] == [
        "--user disable --now jetflock.service",
        "--user daemon-reload",
    ]


@pytest.mark.e2e
@needs_systemd
@pytest.mark.parametrize("user", [None, "daemon"])
def test_systemd_takes_it(tmp_path: Path, user: str | None) -> None:
    file = tmp_path / "jetflock.service"
    words = ("--port", "8001", 'it"s', "100%")
    file.write_text(unit(*words, user=user, folder=str(tmp_path)).text())
    done = subprocess.run(
        ["systemd-analyze", *([] if user else ["--user"]), "verify", str(file)],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), shlex.join(done.args)


@pytest.mark.e2e
@needs_systemd
def test_systemd_calls_the_machines_hardened(tmp_path: Path) -> None:
    file = tmp_path / "jetflock.service"
    file.write_text(unit(user="nobody").text())
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    level = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    assert level is not None, done.stdout + done.stderr
    assert float(level[1]) < 5.0, done.stdout
