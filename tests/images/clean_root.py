"""A folder that is the root of a system: Debian, and Python where the official image has it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SUITE = "bookworm"
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = "ca-certificates,python3,python3-venv"
# Where packages come from is the machine's business: folders to show in the root, too.
_SHOWN = ("/etc/ssl/certs", *filter(None, os.environ.get("TEST_IMAGES_SHOW", "").split(":")))
_KEPT = [name for name in os.environ if name.startswith(("PIP_", "SSL_"))]


class CleanRoot:
    """What runs in it sees nothing else of this machine but its network and devices."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def bootstrap(cls, folder: Path) -> CleanRoot:
        """As root, with debootstrap."""
        mirror = os.environ.get("TEST_IMAGES_MIRROR", "http://deb.debian.org/debian")
        argv = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}"]
        subprocess.run(
            [*argv, SUITE, folder, mirror], check=True, stdout=subprocess.DEVNULL, timeout=900
        )
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
        root = cls(folder)
        root.run("python3 -m venv /usr/local", {})
        return root

    def copy(self, folder: Path) -> CleanRoot:
        subprocess.run(["cp", "-a", "--reflink=auto", self.folder, folder], check=True)
        return CleanRoot(folder)

    def run(
        self,
        line: str,
        environ: Mapping[str, str],
        *,
        cwd: str = "/",
        uid: str = "0",
        mounts: Mapping[Path, str] | None = None,
    ) -> str:
        """By its shell, as Docker runs it. Raises CalledProcessError; its output is told."""
        shown = {Path(path): path for path in _SHOWN if Path(path).exists()} | dict(mounts or {})
        steps = [f"mount -t proc proc {self._inside('/proc')}"]
        steps += [f"mount --rbind /dev {self._inside('/dev')}"]
        for source, target in shown.items():
            there = self._inside(target)
            steps += [f"mkdir -p {there}", f"mount --bind -o ro {shlex.quote(str(source))} {there}"]
        kept = {name: os.environ[name] for name in _KEPT}
        variables = {"PATH": PATH, "HOME": "/root" if uid == "0" else "/", **kept, **environ}
        argv = ["chroot", f"--userspec={uid}:{uid}", str(self.folder), "/usr/bin/env", "-i"]
        argv += [f"{name}={value}" for name, value in variables.items()]
        argv += ["/bin/sh", "-c", f"cd {shlex.quote(cwd)} && {line}"]
        script = " && ".join([*steps, f"exec {shlex.join(argv)}"])
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=1800,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    def _inside(self, path: str) -> str:
        return shlex.quote(f"{self.folder}{path}")
