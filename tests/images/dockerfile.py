"""A Dockerfile as a list of stages; hadolint says whether it is one (test_role_images)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    base: str  # another stage, or an image
    lines: tuple[tuple[str, str], ...]  # an instruction and what stands behind it


@dataclass(frozen=True, slots=True)
class BindMount:
    """`RUN --mount=type=bind`: a folder of another stage's root."""

    stage: str
    source: str
    target: str


def read_stages(path: Path) -> dict[str, Stage]:
    """By name, in their order."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: list[tuple[str, str, list[tuple[str, str]]]] = []
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append((name, base, []))
        elif found:  # an ARG before the first stage chooses a version of the image
            found[-1][2].append((word, rest.strip()))
    return {name: Stage(name, base, tuple(lines)) for name, base, lines in found}


def split_run(rest: str) -> tuple[list[BindMount], str]:
    """What is mounted for a RUN line, and what its shell gets."""
    mounts = []
    while rest.startswith("--mount="):
        flag, _, rest = rest.partition(" ")
        given = dict(pair.split("=", 1) for pair in flag.removeprefix("--mount=").split(","))
        assert given["type"] == "bind", flag
        mounts.append(BindMount(given["from"], given["source"], given["target"]))
        rest = rest.lstrip()
    return mounts, rest


def pairs(rest: str) -> dict[str, str]:
    """Of ENV or ARG; an ARG without a value is empty."""
    split = (word.partition("=") for word in shlex.split(rest))
    return {name: value for name, _, value in split}
