"""The Helm chart, rendered by Helm's own library, with a stand-in for the NATS chart."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.local_stack import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "jetflock"

Values = dict[str, Any]
Manifest = dict[str, Any]

_NATS = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: stands-for-nats}
"""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What `helm template` prints."""

    manifests: list[Manifest]
    notes: str

    def of_kind(self, kind: str) -> list[Manifest]:
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def one(self, kind: str, name: str) -> Manifest:
        [found] = [item for item in self.of_kind(kind) if item["metadata"]["name"] == name]
        return found

    def pods(self) -> Iterator[tuple[str, Manifest]]:
        """Name of the owner and the pod's spec."""
        for manifest in (*self.of_kind("Deployment"), *self.of_kind("Job")):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]

    def container(self, name: str) -> Manifest:
        """The only container of the pods of Deployment or Job `name`."""
        [container] = dict(self.pods())[name]["containers"]
        found: Manifest = container
        return found


class HelmChart:
    """The chart in a folder where its dependency is met by an empty one."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(shutil.copytree(CHART, folder / "jetflock"))
        nats = self.path / "charts" / "nats"
        (nats / "templates").mkdir(parents=True)
        (nats / "Chart.yaml").write_text("{apiVersion: v2, name: nats, version: 2.0.0}\n")
        (nats / "templates" / "nats.yaml").write_text(_NATS)

    def render(
        self, values: Values | None = None, release: str = "jf", *, is_upgrade: bool = False
    ) -> Rendered:
        """As `helm install` and `helm upgrade` do: values are checked first. Raises HelmError."""
        from helm_python import chart as helm  # late: it starts Go's threads

        with helm.Chart.load(self.path) as chart:
            chart.validate_schema(values or {})
            files = chart.render(
                values or {},
                name=release,
                namespace="llm",
                is_install=not is_upgrade,
                is_upgrade=is_upgrade,
            )
        notes = "".join(text for name, text in files.items() if name.endswith("NOTES.txt"))
        manifests = [
            manifest
            for name, text in files.items()
            if not name.endswith("NOTES.txt")
            for manifest in yaml.load_all(text, yaml.CSafeLoader)
            if manifest
        ]
        return Rendered(manifests, notes)

    def lint(self, values: Values | None = None) -> list[str]:
        """Errors and warnings of `helm lint --strict`."""
        from helm_python import chart as helm

        report = helm.lint(self.path, values or {}, strict=True)
        return [
            *report["errors"],
            *(item["error"] for item in report["messages"] if item["severity"] > 1),
        ]


def env_of(container: Manifest) -> dict[str, str]:
    """The literal variables of a container."""
    return {item["name"]: item["value"] for item in container["env"] if "value" in item}
