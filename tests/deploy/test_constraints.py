"""CI installs versions that are written down, and which pyproject.toml allows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def pins() -> dict[str, str]:
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def requirements() -> list[Requirement]:
    """All that the environment of developers needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = list(project["dependencies"])
    texts += [text for extra in sorted(set(extras) - {"cuda"}) for text in extras[extra]]
    found = [Requirement(text) for text in texts]
    return [
        one for one in found if one.name != "jetflock" and (not one.marker or one.marker.evaluate())
    ]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_each_dependency_is_pinned_to_a_version_that_is_allowed(requirement: Requirement) -> None:
    version = pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), version


def test_ci_uses_them() -> None:
    assert "--constraint .ci/constraints.txt" in (ROOT / ".ci" / "run").read_text()
