"""How this jetflock was installed, and the command that adds to it: nothing here is on PyPI yet."""

from __future__ import annotations

import functools
import json
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

_PARENT = Path(__file__).resolve().parents[2]


@functools.cache
def own_version() -> str:
    """The version of jetflock, as its package says it: five milliseconds the first time."""
    return version("jetflock")


def checkout() -> Path | None:
    """The folder of the repository that this code runs from; None when it runs from a wheel."""
    is_checkout = (_PARENT / "pyproject.toml").is_file() and (_PARENT / "jetflock").is_dir()
    return _PARENT if is_checkout else None


def install_command(*extras: str) -> str:
    """A command for this very Python that brings jetflock with these extras."""
    suffix = f"[{','.join(extras)}]" if extras else ""
    folder = checkout()
    if folder is not None:
        return f"{_pip()} -e {shlex.quote(f'{folder}{suffix}')}"
    return f"{_pip()} {shlex.quote(f'jetflock{suffix}{_wheel_source()}')}"


def command_line() -> str:
    """What this very `jetflock` is called in the shell that started it, wherever it goes on."""
    own = Path(sys.executable).parent / "jetflock"
    on_path = shutil.which("jetflock")
    if on_path is not None and Path(on_path).exists() and own.exists() and own.samefile(on_path):
        return "jetflock"
    return shlex.quote(str(own)) if own.exists() else f"{shlex.quote(sys.executable)} -m jetflock"


def install_other(package: str) -> str:
    """A command for this very Python that installs somebody else's package."""
    return f"{_pip()} {shlex.quote(package)}"


def _pip() -> str:
    return f"{shlex.quote(sys.executable)} -m pip install"


def _wheel_source() -> str:
    """`@ file:///...`, when this is where the installed wheel came from."""
    try:
        text = distribution("jetflock").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    try:
        url = json.loads(text or "{}").get("url", "")
    except (ValueError, AttributeError):
        return ""
    return f" @ {url}" if isinstance(url, str) and url else ""
