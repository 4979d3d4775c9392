"""values.yaml explains every value of the chart, and docs/kubernetes.md names no other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from tests.deploy.helm_chart import CHART
from tests.deploy.local_stack import REPOSITORY

VALUES = (CHART / "values.yaml").read_text()
LINES = VALUES.splitlines()
# Words of Kubernetes, Helm or KEDA that mean here what they mean everywhere.
_KNOWN = {
    *("affinity", "annotations", "className", "create", "enabled", "extraArgs", "fullnameOverride"),
    *("hostnames", "imagePullSecrets", "interval", "labels", "logLevel", "maxReplicas"),
    *("maxUnavailable", "minReplicas", "nameOverride", "nodeSelector", "parentRefs"),
    *("podAnnotations", "podLabels", "port", "priorityClassName", "pullPolicy", "resources"),
    *("storageClassName", "targetCPUUtilizationPercentage", "terminationGracePeriodSeconds"),
    *("timeoutSeconds", "tls", "tolerations"),
}


def leaves(
    node: yaml.MappingNode, path: tuple[str, ...] = (), explained: bool = False
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Each value's path, and whether a comment stands beside it, above it or at its parent."""
    for key, value in node.value:
        name = (*path, key.value)
        is_told = has_comment(key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value and key.value != "resources":
            yield from leaves(value, name, explained or (is_told and bool(path)))
        else:
            yield name, is_told or explained


def has_comment(line: int) -> bool:
    return " # " in LINES[line] or LINES[line - 1].lstrip().startswith("#")


def values() -> dict[tuple[str, ...], bool]:
    root = yaml.compose(VALUES)
    assert isinstance(root, yaml.MappingNode)
    return dict(leaves(root))


def test_every_value_is_explained_where_it_stands() -> None:
    assert len(values()) > 100
    silent = [
        ".".join(name)
        for name, is_told in values().items()
        if not is_told and not _KNOWN & {name[-1], name[-2] if len(name) > 1 else ""}
    ]
    assert not silent


def test_the_page_names_values_of_the_chart() -> None:
    text = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    tops = {name[0] for name in values()}
    prefixes = {name[:end] for name in values() for end in range(1, len(name) + 1)}
    last = {name[-1] for name in prefixes}
    named = {
        tuple(name.split("."))
        for name in re.findall(r"`([a-z][A-Za-z]*(?:\.[a-zA-Z]+)*)(?::[^`]*)?`", text)
        if name.split(".")[0] in tops and "." in name
    }
    assert len(named) > 8
    foreign = {"nats.promExporter.enabled", "nats.config.jetstream.merge"}  # of NATS's own chart
    unknown = {".".join(name) for name in named - prefixes} - foreign
    assert not unknown
    camel = set(re.findall(r"`([a-z]+(?:[A-Z][a-z]+)+)(?::[^`]*)?`", text))
    assert len(camel) > 8
    assert camel <= last | {"podAnnotations", "whenUnsatisfiable"}
