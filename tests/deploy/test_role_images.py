"""Images: a role runs with its own extra alone, and the Dockerfile finds what it copies."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.deploy.helm_chart import CHART
from tests.deploy.local_stack import REPOSITORY

DOCKERFILE = REPOSITORY / "deploy" / "docker" / "Dockerfile"
EXTRAS = ("frontend", "detok", "worker")
PUBLIC_IMAGES = {"python"}


def needed_by(extras: Iterable[str]) -> set[str]:
    """The distributions that `jetflock[extras]` brings, as far as they are installed."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return with_dependencies(wanted)


def with_dependencies(requirements: Iterable[str]) -> set[str]:
    """Names of these distributions and of what they bring, as far as they are installed."""
    wanted = list(requirements)
    found: set[str] = set()
    while wanted:
        requirement = Requirement(wanted.pop())
        if canonical(requirement.name) not in found:
            try:
                wanted += brought_by(requirement)
            except metadata.PackageNotFoundError:
                continue
            found.add(canonical(requirement.name))
    return found


def brought_by(requirement: Requirement) -> Iterator[str]:
    for text in metadata.requires(requirement.name) or []:
        marker = Requirement(text).marker
        extras = (*requirement.extras, "")
        if not marker or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield text


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def modules_absent_from(*roles: str) -> list[str]:
    """Top-level modules that other roles' images have, and that of these has not."""
    absent = needed_by(EXTRAS) - needed_by(roles)
    return sorted(
        module
        for module, distributions in metadata.packages_distributions().items()
        if {canonical(name) for name in distributions} <= absent
    )


IMPORT_ALL = """
import importlib, pkgutil, runpy, sys
role, absent = sys.argv[1], sys.argv[2].split(",")
sys.modules.update(dict.fromkeys(absent))  # importing one of them raises
for package in (role, *sys.argv[3:]):
    folder = importlib.import_module(package).__path__
    for module in pkgutil.walk_packages(folder, f"{package}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
sys.argv = [role, "--help"]
runpy.run_module(role, run_name="__main__")
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("role", "packages", "unneeded"),
    [
        ("frontend", ["jetflock"], {"torch", "transformers", "safetensors"}),
        ("detok", [], {"torch", "transformers", "numpy", "starlette", "uvicorn", "llguidance"}),
    ],
)
def test_a_role_needs_no_more_than_its_extra(
    role: str, packages: list[str], unneeded: set[str]
) -> None:
    absent = modules_absent_from(role)
    assert unneeded <= set(absent)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, role, ",".join(absent), *packages],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--nats-url" in done.stdout


RUN_COMMAND = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))  # importing one of them raises
import jetflock.cli
jetflock.cli.main()
"""


@pytest.mark.e2e
def test_the_command_alone_is_small_and_a_role_says_how_to_get_it() -> None:
    """The real installation is looked at every night: tests/jetflock/test_base_install.py."""
    absent = modules_absent_from()
    assert {"torch", "tokenizers", "transformers", "numpy", "starlette", "uvicorn"} <= {*absent}
    files = [path for name in needed_by(()) for path in metadata.files(name) or ()]
    paths = [Path(str(file.locate())) for file in files if file.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in paths if path.exists()) < 120 << 20
    done = subprocess.run(
        [sys.executable, "-c", RUN_COMMAND, ",".join(absent), "detok"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert f"{sys.executable} -m pip install " in done.stderr
    assert done.stderr.endswith("[detok]'\n")


def instructions(word: str) -> Iterator[str]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith(f"{word} "):
            yield line.removeprefix(f"{word} ")


@pytest.mark.e2e
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        ["hadolint", "--no-color", DOCKERFILE],
        env={"PATH": f"{sys.prefix}/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a top-level name, or a folder below one, into the context."""
    patterns = (REPOSITORY / ".dockerignore").read_text().splitlines()
    return f"!{path.split('/')[0]}" in patterns and path not in patterns


IMPORT_BUILD = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # importing one of them raises
import worker.engine.native.native_library
"""


@pytest.mark.e2e
def test_the_wheels_stage_installs_what_the_decoders_build_imports() -> None:
    [line] = [line for line in instructions("RUN") if "hatchling" in line]
    installed = with_dependencies(re.findall(r'"([^"]+)"', line))
    absent = {
        module
        for module, distributions in metadata.packages_distributions().items()
        if not {canonical(name) for name in distributions} & installed
    }
    assert "rich" in absent
    own = {"worker", "shared", "jetflock"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_BUILD, ",".join(absent - own)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_copied_is_there() -> None:
    copies = [line.split() for line in instructions("COPY")]
    sources = [path for *paths, _ in copies for path in paths if not path.startswith("--")]
    assert {"jetflock", "shared", "frontend", "detok", "worker", "deploy"} <= set(sources)
    for source in sources:
        assert (REPOSITORY / source).exists(), source
        assert is_sent(source), source


def test_images_are_public_and_no_host_is_named() -> None:
    stages: set[str] = set()
    for line in instructions("FROM"):
        image, _, stage = line.partition(" AS ")
        assert image in stages or image.split(":")[0] in PUBLIC_IMAGES, image
        stages.add(stage)
    assert {"frontend", "detok", "worker", "worker-cuda"} <= stages
    assert not re.search(r"https?://|[a-z0-9-]+\.(io|com|org)\b", DOCKERFILE.read_text())


def test_the_demo_model_lies_where_the_chart_looks_for_it() -> None:
    [copied] = [line for line in instructions("COPY") if "demo_model" in line]
    assert copied == "deploy/demo_model/checkpoint /opt/jetflock/demo_model"
    assert "model: /opt/jetflock/demo_model\n" in (CHART / "values.yaml").read_text()


def test_images_run_as_the_charts_user() -> None:
    assert "--uid 10001" in DOCKERFILE.read_text()
    assert set(instructions("USER")) == {"10001"}
    assert "runAsUser: 10001" in (CHART / "templates" / "_pod.tpl").read_text()
