"""Makes a checkout's environment, in one line of progress: `python3 deploy/environment.py EXTRA`.

Runs before anything is installed, so it imports the standard library alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# PyPI's torch for Linux brings CUDA along, about 3 GB; PyTorch's own index has builds without it.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# PyPI's is for CUDA 13, which an older driver does not run; this one is for CUDA 12.
TORCH_CUDA_12_INDEX = "https://download.pytorch.org/whl/cu126"
CUDA_12_DRIVERS = range(525, 580)
DRIVER_VERSION = Path("/proc/driver/nvidia/version")
# Settings that say where packages come from. uv reads none of pip's.
SOURCES = ("index-url", "extra-index-url", "find-links", "no-index", "constraint")
_PROBE_S = 3.0
_TAIL_LINES = 20
_REDRAW_S = 0.2


class SetupFailed(Exception):
    """The environment could not be made; the message says why, and where to look."""


def main() -> None:
    """Make or complete the environment for an extra of pyproject.toml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extra", help="serve: what serving needs; dev: that and developers' tools")
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="folder to make")
    parser.add_argument("--pip-args", default="", help="more arguments for the installer")
    args = parser.parse_args()
    try:
        Environment(args.venv, shlex.split(args.pip_args)).install(args.extra)
    except SetupFailed as exc:
        sys.stderr.write(f"jetflock: {exc}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


class Environment:
    """A virtual environment, and the installer that fills it: uv where it is there, else pip."""

    def __init__(self, venv: Path, more_args: Sequence[str]) -> None:
        self._venv = venv
        self._more_args = list(more_args)
        self._python = venv / "bin" / "python"
        self._log = venv / "install.log"

    def install(self, extra: str) -> None:
        """Raises SetupFailed."""
        began_at = time.monotonic()
        _say(f"setting up {self._venv} for '{extra}'; what the installer says is in {self._log}")
        self._make()
        self._log.write_text("")
        if not any(self._fill(argv) for argv in self._installers(f"{ROOT}[{extra}]")):
            raise SetupFailed(f"the installation failed; the end of {self._log}:\n{self._tail()}")
        num_packages = len(list(self._venv.glob("lib/python3*/site-packages/*.dist-info")))
        _say(
            f"{self._venv} is ready: {num_packages} packages, {_num_bytes(self._venv) >> 20} MB, "
            f"{time.monotonic() - began_at:.0f} s"
        )

    def _make(self) -> None:
        if os.access(self._python, os.X_OK):
            return
        done = subprocess.run(  # noqa: S603 - fixed words
            [sys.executable, "-m", "venv", str(self._venv)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SetupFailed(
                f"cannot make {self._venv}: {(done.stdout + done.stderr).strip()}\n"
                "The venv module is needed (Debian: apt install python3-venv)."
            )

    def _installers(self, package: str) -> Iterator[list[str]]:
        """Command lines, the next one for when the one before it has failed."""
        has_sources = has_own_sources(self._pip_settings())
        wants_cpu = sys.platform == "linux" and not has_nvidia_gpu()
        uv = shutil.which("uv")
        if uv is not None and has_sources:
            _say("uv is here, but does not read pip's settings, which name sources: pip installs")
        elif uv is not None:
            argv = [uv, "pip", "install", "--python", str(self._python), "--no-progress"]
            yield [
                *argv,
                "--torch-backend",
                "cpu" if wants_cpu else "auto",
                *self._more_args,
                "-e",
                package,
            ]
            _say("uv has failed: pip installs")
        yield [
            *(str(self._python), "-m", "pip", "install", "--disable-pip-version-check"),
            *(() if has_sources else _torch_index(wants_cpu=wants_cpu)),
            *("--progress-bar", "off", "--no-compile"),  # what is imported is compiled then
            *(*self._more_args, "-e", package),
        ]

    def _pip_settings(self) -> str:
        argv = [str(self._python), "-m", "pip", "config", "list"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603
        return done.stdout

    def _fill(self, argv: Sequence[str]) -> bool:
        """Whether it went well."""
        line = ProgressLine()
        with (
            self._log.open("a") as log,
            subprocess.Popen(  # noqa: S603 - an installer, with what make was told
                argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            ) as process,
        ):
            log.write(f"$ {shlex.join(argv)}\n")
            assert process.stdout is not None
            for text in process.stdout:
                log.write(text)
                line.show(text)
        line.clear()
        return process.returncode == 0

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


class ProgressLine:
    """One line on a terminal that is written over; elsewhere nothing."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._began_at = time.monotonic()
        self._drawn_at = 0.0
        self._num_collected = 0

    def show(self, text: str) -> None:
        """What pip or uv has said last."""
        self._num_collected += text.startswith("Collecting ")
        now = time.monotonic()
        doing = phase(text, self._num_collected)
        if not self._is_shown or doing is None or now - self._drawn_at < _REDRAW_S:
            return
        self._drawn_at = now
        width = shutil.get_terminal_size().columns - 1
        line = f"jetflock: {now - self._began_at:4.0f} s  {doing}"
        sys.stderr.write(f"\r\x1b[K{line[:width]}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def phase(text: str, num_collected: int) -> str | None:
    """What an installer is doing, by its last line; None when that does not tell."""
    if text.startswith("Collecting "):
        return f"{num_collected} packages looked up: {text.split()[1]}"
    if (
        found := re.match(r"\s*(?:Downloading|Using cached|Processing) (\S+)(.*)", text)
    ) is not None:
        name = found[1].rpartition("/")[2].split("-")[0]
        return f"{num_collected} packages looked up: {name}{found[2].rstrip()}"
    if text.startswith("Installing collected packages"):
        return f"installing {text.count(',') + 1} packages"
    return text.strip() or None


def has_own_sources(pip_settings: str) -> bool:
    """Whether `pip config list` names indexes or folders: then they are used as they are."""
    names = [line.partition("=")[0].rpartition(".")[2] for line in pip_settings.splitlines()]
    return any(name in SOURCES for name in names)


def has_nvidia_gpu() -> bool:
    """Whether there is a driver of one."""
    return Path("/proc/driver/nvidia/gpus").is_dir() or shutil.which("nvidia-smi") is not None


def driver_branch(path: Path = DRIVER_VERSION) -> int | None:
    """The branch of NVIDIA's driver: 570 of 570.86.15. None where there is none, or it does not
    tell.
    """
    try:
        found = re.search(r"\s(\d+)\.\d+(?:\.\d+)?\s", path.read_text())
    except OSError:
        return None
    return None if found is None else int(found[1])


def _torch_index(*, wants_cpu: bool) -> tuple[str, ...]:
    """The pin of torch takes a build `+cpu` or `+cu126` of an index before that of PyPI."""
    if wants_cpu:
        lack = "torch without CUDA: PyPI's may bring 3 GB more"
        return _answering(TORCH_CPU_INDEX, lack)
    if driver_branch() in CUDA_12_DRIVERS:
        lack = f"torch for NVIDIA driver {driver_branch()}: PyPI's needs {CUDA_12_DRIVERS.stop}"
        return _answering(TORCH_CUDA_12_INDEX, lack)
    return ()


def _answering(index: str, lack: str) -> tuple[str, ...]:
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=_PROBE_S):  # noqa: S310
            return ("--extra-index-url", index)
    except OSError:
        _say(f"{index} does not answer, which has {lack}")
        return ()


def _num_bytes(folder: Path) -> int:
    """On the disk."""
    return sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512
        for parent, _, names in os.walk(folder)
        for name in names
    )


def _say(sentence: str) -> None:
    sys.stderr.write(f"jetflock: {sentence}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
