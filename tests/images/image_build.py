"""Builds stages of the Dockerfile in roots of their own, from what is committed."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.local_stack import REPOSITORY
from tests.images.clean_root import CleanRoot
from tests.images.dockerfile import Stage, pairs, read_stages, split_run

DOCKERFILE = REPOSITORY / "deploy" / "docker" / "Dockerfile"


@dataclass(slots=True)
class Image:
    """What the next instruction finds."""

    root: CleanRoot
    environ: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)  # for RUN alone
    cwd: str = "/"
    uid: str = "0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


class ImageBuild:
    """Stages are built once; what copies a root copies a finished one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stages = read_stages(DOCKERFILE)
        self._base: CleanRoot | None = None
        self._built: dict[str, Image] = {}

    def image(self, name: str) -> Image:
        if name not in self._built:
            self._built[name] = self._build(self._stages[name])
        return self._built[name]

    def try_command(self, name: str, *words: str) -> str:
        """The image's entry point with its command and `words`, as its user."""
        image = self.image(name)
        line = " ".join([*image.entrypoint, *image.command, *words])
        return image.root.run(line, image.environ, uid=image.uid)

    def _build(self, stage: Stage) -> Image:
        folder = self._folder / stage.name
        if stage.base in self._stages:
            base = self.image(stage.base)
            image = Image(
                base.root.copy(folder),
                dict(base.environ),
                cwd=base.cwd,
                uid=base.uid,
                entrypoint=base.entrypoint,
                command=base.command,
            )
        else:
            if self._base is None:
                self._base = CleanRoot.bootstrap(self._folder / "base")
            image = Image(self._base.copy(folder))
        for word, rest in stage.lines:
            self._do(image, word, rest)
        return image

    def _do(self, image: Image, word: str, rest: str) -> None:
        match word:
            case "RUN":
                mounts, line = split_run(rest)
                shown = {
                    Path(f"{self.image(each.stage).root.folder}{each.source}"): each.target
                    for each in mounts
                }
                variables = image.environ | image.arguments
                image.root.run(line, variables, cwd=image.cwd, uid=image.uid, mounts=shown)
            case "COPY":
                *sources, target = rest.split()
                inside = posixpath.join(image.cwd, target)
                _copy(sources, image.root.folder / inside.lstrip("/"))
            case "ENV":
                image.environ |= pairs(rest)
            case "ARG":
                given = {name: os.environ.get(name, value) for name, value in pairs(rest).items()}
                image.arguments |= given
            case "WORKDIR":
                image.cwd = rest
                (image.root.folder / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                image.uid = rest
            case "ENTRYPOINT":
                image.entrypoint = json.loads(rest)
            case "CMD":
                image.command = json.loads(rest)
            case "EXPOSE":
                pass
            case _:
                raise AssertionError(f"{word} is not known here: teach image_build.py")


def _copy(sources: list[str], target: Path) -> None:
    """Files that are committed; of a folder what is in it."""
    for source in sources:
        there = REPOSITORY / source
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--", source], cwd=REPOSITORY, capture_output=True, check=True
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            file = REPOSITORY / name
            wanted = target / (file.relative_to(there) if there.is_dir() else file.name)
            wanted.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, wanted)
