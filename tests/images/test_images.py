"""`make test-images`: each line of the Dockerfile runs in a clean Debian, and each role starts.

Without it the shell reads the lines, and runs none.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.images.dockerfile import read_stages, split_run
from tests.images.image_build import DOCKERFILE, ImageBuild

# `all` has the image of the CUDA worker, too: 8 GB.
MODE = os.environ.get("JETFLOCK_TEST_IMAGES", "")
ROLES = ("frontend", "detok", "worker", "worker-cuda")

STAGES = read_stages(DOCKERFILE)
RUNS = [
    split_run(rest)[1] for stage in STAGES.values() for word, rest in stage.lines if word == "RUN"
]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> ImageBuild:
    if os.geteuid() != 0:
        pytest.fail("make test-images changes roots and mounts: run it as root")
    return ImageBuild(tmp_path_factory.mktemp("images"))


def test_all_stages_and_lines_are_read() -> None:
    assert set(STAGES) == {"wheel", "role", "worker-base", *ROLES}
    assert len(RUNS) == DOCKERFILE.read_text().count("\nRUN ")


@pytest.mark.e2e
@pytest.mark.parametrize("line", RUNS)
def test_a_line_is_one_of_a_shell(line: str) -> None:
    done = subprocess.run(["sh", "-n", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), line


@pytest.mark.skipif(not MODE, reason="make test-images")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("role", ROLES)
def test_an_image_is_built_and_its_role_starts(build: ImageBuild, role: str) -> None:
    if role == "worker-cuda" and MODE != "all":
        pytest.skip("JETFLOCK_TEST_IMAGES=all")
    assert "--nats-url" in build.try_command(role, "--help")
    image = build.image(role)
    owner = image.root.run("id -u; touch /cache/x; ls -ld /cache", image.environ, uid=image.uid)
    assert owner.startswith("10001\n")
