"""`jetflock service`: `jetflock serve` as a systemd unit, for this user or for the machine."""

# No `from __future__ import annotations` here: cyclopts reads the types of the commands.

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deploy.local.__main__ import PROGRAM as SERVE
from deploy.local.serve_config import ServeConfig
from jetflock.command_line.output import print_json
from shared.checkpoint.hub import is_hub_id
from shared.cli.program import Program
from shared.config import ENV_PREFIX
from shared.errors import ConfigError, JetflockError

_NAME = "jetflock service"
_SUMMARY = """\
Run jetflock serve as a systemd unit: it starts at boot, and again when it dies.

Flags behind -- are those of jetflock serve. The unit is one of this user; root makes one of the
machine by --system."""
UNIT = "jetflock.service"
_SYSTEM_UNITS = Path("/etc/systemd/system")
_BOOTED = Path("/run/systemd/system")  # there where systemd runs the machine: sd_booted(3)
_MIN_STOP_S = 90.0
_STOP_MARGIN_S = 30.0
_CONTROL_S = 180.0  # stopping may take as long as the unit says
_PRIVATE = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - of which each service has its own
# Where models and data are: serve in a unit must find those that serve in this shell has.
_FOLDER_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME")
_SHOWN = ("ActiveState", "SubState", "UnitFileState", "MainPID", "NRestarts", "ExecMainStatus")

_Words = Annotated[str, Parameter(allow_leading_hyphen=True)]
_Flag = Annotated[bool, Parameter(negative="")]
_AsJson = Annotated[bool, Parameter(name="--json", negative="")]
# What takes rights away without a mount namespace, which a unit of a user may not have. Memory that
# is written and then run (oneDNN, Triton) stays allowed, and so do devices (GPUs): ProtectClock
# would close them, too.
_HARDENING = """\
NoNewPrivileges=true
LockPersonality=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native
UMask=0077
"""
_SYSTEM_HARDENING = """\
CapabilityBoundingSet=
PrivateTmp=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectSystem=full
"""
_NETWORK = "After=network-online.target\nWants=network-online.target\n"
_ESCAPES = {"\\": "\\\\", '"': '\\"', "%": "%%"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUnit:
    """`user` is None for a unit of whoever installs it, and a name for one of the machine."""

    argv: Sequence[str]
    folder: Path  # where it runs: relative paths in argv mean what they meant to whoever typed them
    user: str | None = None
    stop_s: float = 90.0
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """That starts it at boot, or when its user's services start."""
        return "default.target" if self.user is None else "multi-user.target"

    def text(self) -> str:
        """Raises ConfigError for a word that no unit can hold."""
        is_system = self.user is not None
        return (
            "[Unit]\n"
            "Description=jetflock serve\n"
            f"{_NETWORK if is_system else ''}"
            "StartLimitIntervalSec=0\n"
            "\n"
            "[Service]\n"
            "Type=exec\n"
            f"{self._owner()}"
            f"WorkingDirectory={_one_line(str(self.folder)).replace('%', '%%')}\n"
            f"{self._environment()}"
            f"ExecStart={' '.join(_quoted(word) for word in self.argv)}\n"
            "Restart=on-failure\n"
            "RestartSec=5\n"
            "# A refused configuration is refused again.\n"
            "RestartPreventExitStatus=2\n"
            "# The supervisor takes its tree down in order; what is left after that is killed.\n"
            "KillMode=mixed\n"
            f"TimeoutStopSec={self.stop_s:.0f}\n"
            "# The supervisor starts a worker again that the kernel killed for memory.\n"
            "OOMPolicy=continue\n"
            "LimitNOFILE=65536\n"
            f"{_HARDENING}"
            f"{_SYSTEM_HARDENING if is_system else ''}"
            "\n"
            "[Install]\n"
            f"WantedBy={self.target}\n"
        )

    def _owner(self) -> str:
        return "" if self.user is None else f"User={self.user}\n"

    def _environment(self) -> str:
        pairs = (f"{name}={value}" for name, value in self.environ.items())
        return "".join(f'Environment="{_escaped(pair)}"\n' for pair in pairs)


def _quoted(word: str) -> str:
    """The word as systemd reads a command line: % and $ doubled, all else in quotes if need be."""
    escaped = _escaped(word).replace("$", "$$")
    is_plain = word and not set(word) & set(" \t'\"\\;")
    return escaped if is_plain else f'"{escaped}"'


def _escaped(word: str) -> str:
    return "".join(_ESCAPES.get(each, each) for each in _one_line(word))


def _one_line(text: str) -> str:
    if any(ord(each) < ord(" ") and each != "\t" for each in text):
        raise ConfigError(f"{text!r} holds a line end or another control character: no unit can")
    return text


class ServiceFailed(JetflockError):
    """systemd refused, or what it runs does not run."""

    exit_status = 1


@dataclass(frozen=True, slots=True)
class Manager:
    """systemd's for this user, or that of the machine."""

    is_system: bool

    @property
    def unit_path(self) -> Path:
        """Where it looks for units that no package brought."""
        if self.is_system:
            return _SYSTEM_UNITS / UNIT
        config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        return Path(config).expanduser() / "systemd" / "user" / UNIT

    @property
    def control(self) -> str:
        return "systemctl" if self.is_system else "systemctl --user"

    @property
    def log(self) -> str:
        return f"journalctl {'' if self.is_system else '--user '}-u {UNIT}"

    def ask(self, *words: str) -> str:
        """What systemctl prints. Raises ServiceFailed with what it says."""
        argv = [*self.control.split(), *words]
        try:
            done = subprocess.run(  # noqa: S603 - systemd's own program
                argv, capture_output=True, text=True, check=False, timeout=_CONTROL_S
            )
        except (OSError, subprocess.SubprocessError) as exc:
            raise ServiceFailed(f"{' '.join(argv)}: {exc}") from exc
        if done.returncode:
            told = done.stderr.strip() or f"status {done.returncode}"
            raise ServiceFailed(f"{' '.join(argv)}: {told}")
        return done.stdout


def install(
    *words: _Words, dry_run: _Flag = False, system: _Flag = False, user: str | None = None
) -> None:
    """Write the unit for `jetflock serve WORDS`; --dry-run prints it. Nothing is started.

    With --system it is the machine's, and runs as USER, whose folder holds the data.
    """
    _check_owner(system, user)
    config, model = _understood(words)
    program = str(Path(sys.executable).parent / "jetflock")
    folder = Path.cwd()
    if user is not None:
        _check_reach(user, program, folder, config, model)
    text = ServiceUnit(
        argv=(program, "serve", *words),
        folder=folder,
        user=user,
        stop_s=max(_MIN_STOP_S, config.leave_timeout_s + _STOP_MARGIN_S),
        environ={} if system else _folders(),
    ).text()
    _print_left_out()
    if dry_run:
        sys.stdout.write(text)
        return
    _check_systemd("nothing was written; --dry-run prints the unit")
    manager = Manager(system)
    is_there = manager.unit_path.exists()
    _write(manager.unit_path, text)
    sys.stdout.write(_next_steps(manager, is_there))


def uninstall(*, system: _Flag = False) -> None:
    """Stop the service, and remove its unit. Its data stay."""
    manager = Manager(system)
    path = manager.unit_path
    if not path.exists():
        raise ConfigError(f"there is no {path}")
    _check_systemd(f"remove {path} by hand")
    manager.ask("disable", "--now", UNIT)
    path.unlink()
    manager.ask("daemon-reload")
    sys.stdout.write(f"stopped it and removed {path}\n")


def status(*, system: _Flag = False, as_json: _AsJson = False) -> None:
    """Whether there is a unit, what it runs, and whether it does; status 1 where it does not."""
    manager = Manager(system)
    path = manager.unit_path
    facts: dict[str, str | None] = {"unit": str(path), "runs": None}
    if path.exists():
        starts = (line for line in path.read_text().splitlines() if line.startswith("ExecStart="))
        facts["runs"] = next(starts, "").partition("=")[2]
        _check_systemd(f"{path} is there, and nobody runs it")
        told = manager.ask("show", UNIT, f"--property={','.join(_SHOWN)}")
        facts |= dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    if as_json:
        print_json(facts)
    elif facts["runs"] is None:
        sys.stdout.write(f"there is no {path}: jetflock service install makes one\n")
    else:
        sys.stdout.write("".join(f"{name:15} {value}\n" for name, value in facts.items()))
        sys.stdout.write(f"{'log':15} {manager.log} -f\n")
    if facts.get("ActiveState") != "active":
        raise SystemExit(ServiceFailed.exit_status)


def _check_owner(system: bool, user: str | None) -> None:
    if not system:
        if user is not None:
            raise ConfigError("--user is for --system: a unit of your own runs as you")
        return
    if os.geteuid() != 0:
        raise ConfigError("--system makes a unit of the machine, which only root may")
    if user is None:
        raise ConfigError("with --system give --user NAME: the service should not run as root")
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise ConfigError(f"--user: there is no user {user!r} on this machine") from None


def _understood(words: tuple[str, ...]) -> tuple[ServeConfig, str]:
    """What serve would refuse is refused now. Raises ConfigError."""
    bound = SERVE.bound(words)
    config, model = bound.arguments["config"], str(bound.arguments["model"])
    if not Path(model).expanduser().exists() and not is_hub_id(model):
        raise ConfigError(f"there is no model at {model!r}")
    assert isinstance(config, ServeConfig)
    _ = config.ranges
    return config, model


def _check_reach(user: str, program: str, folder: Path, config: ServeConfig, model: str) -> None:
    """Raises ConfigError for what root can reach, and the service's user cannot."""
    if not _can(user, "test", "-x", str(folder)):
        raise ConfigError(f"{user} may not enter {folder}, where the service would run")
    path = Path(model).expanduser().absolute()
    for each in (folder, path, Path(program)):
        if any(private in (each, *each.parents) for private in _PRIVATE):
            raise ConfigError(f"a service has a /tmp of its own: {each} may not be there")
    if not _can(user, program, "version"):
        raise ConfigError(
            f"{user} cannot run {program}: install jetflock, and a Python for it, where others may"
        )
    if path.exists() and not _can(user, "test", "-r", str(path / "config.json")):
        raise ConfigError(f"{user} may not read the model {path}")
    data = _data_dir(config, Path(pwd.getpwnam(user).pw_dir))
    there = next(each for each in (data, *data.parents) if each.exists())
    if config.has_own_nats and not _can(user, "test", "-w", str(there)):
        raise ConfigError(f"{user} may not write to {there}: name a folder for it by --data-dir")


def _data_dir(config: ServeConfig, home: Path) -> Path:
    """Where serve keeps its data as a user with this home, and without variables."""
    if config.data_dir is None:
        return home / ".local" / "state" / "jetflock" / f"port-{config.port}"
    text = str(config.data_dir)
    return home / text[2:] if text.startswith("~/") else config.data_dir.absolute()


def _can(user: str, program: str, *words: str) -> bool:
    """Whether this user can run the program, and it ends well."""
    owner = pwd.getpwnam(user)
    try:
        done = subprocess.run(  # noqa: S603 - coreutils, and our own
            [shutil.which(program) or program, *words],
            check=False,
            cwd="/",
            env={"PATH": os.defpath, "HOME": owner.pw_dir},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=owner.pw_uid,
            group=owner.pw_gid,
            extra_groups=os.getgrouplist(user, owner.pw_gid),
            timeout=_CONTROL_S,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _folders() -> dict[str, str]:
    return {
        name: str(Path(value).absolute())
        for name in _FOLDER_VARIABLES
        if (value := os.environ.get(name))
    }


def _print_left_out() -> None:
    """Keys among them should not lie in a unit, which others may read."""
    names = sorted(name for name in os.environ if name.startswith(ENV_PREFIX))
    if names:
        sys.stderr.write(
            f"{_NAME}: not in the unit: {', '.join(names)}; give flags, or a file by --config\n"
        )


def _check_systemd(consequence: str) -> None:
    if not _BOOTED.is_dir() or shutil.which("systemctl") is None:
        raise ConfigError(f"systemd does not run this machine (no {_BOOTED}): {consequence}")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc


def _next_steps(manager: Manager, was_there: bool) -> str:
    lines = [
        f"wrote {manager.unit_path}",
        "start it, now and at boot:",
        f"  {manager.control} daemon-reload",
        f"  {manager.control} enable --now {UNIT}",
    ]
    if was_there:
        lines.append(f"  {manager.control} restart {UNIT}   # if it runs as it was before")
    if not manager.is_system:
        lines.append("  loginctl enable-linger   # so that it runs while nobody is logged in")
    return "\n".join([*lines, "its log:", f"  {manager.log} -f", ""])


_COMMANDS: dict[str, Callable[..., None]] = {
    "install": install,
    "uninstall": uninstall,
    "status": status,
}

PROGRAM = Program(
    name=_NAME, summary=_SUMMARY, commands=_COMMANDS, takes_file=False, ignored=("--",)
)

if __name__ == "__main__":
    PROGRAM.run()
