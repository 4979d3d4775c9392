"""The text of a systemd unit that runs `jetflock serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import ConfigError

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
