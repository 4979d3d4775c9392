"""docs/kubernetes.md names every value of the chart, with its default, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.deploy.helm_chart import CHART
from tests.deploy.local_stack import REPOSITORY

ROLES = ("frontend", "detok", "worker")
WHOLE = ("resources", "topologySpreadConstraints")  # told as one value
UNTOLD = object()  # the table leaves the default to values.yaml


def flattened(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in WHOLE:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def documented() -> Iterator[tuple[str, Any]]:
    text = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    rows = text.split("| value: default | |\n|---|---|\n")[1].splitlines()
    for row in rows:
        before = ""
        for item in re.findall(r"`([^`]+)`", row.split("|")[1]):
            name, _, default = item.partition(": ")
            if name.startswith("."):
                name = before.rsplit(".", 1)[0] + name
            before = name
            for role in ROLES if name.startswith("<role>") else ("",):
                value = yaml.safe_load(default) if default else UNTOLD
                yield name.replace("<role>", role), value


def test_the_table_is_values_yaml() -> None:
    values = dict(flattened(yaml.safe_load((CHART / "values.yaml").read_text())))
    told = list(documented())
    assert sorted(name for name, _ in told) == sorted(values)
    for name, default in told:
        if default is not UNTOLD:
            assert default == values[name], name
