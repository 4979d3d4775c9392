"""Workflows, templates and the development container name what is there, and call the Makefile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.local.serve_config import ServeConfig
from tests.deploy.local_stack import REPOSITORY

GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
# What GitHub itself keeps: nobody else's code runs beside the repository's token.
# A tag may move to other code; a commit may not.
ACTIONS = re.compile(r"actions/(checkout|setup-python|upload-artifact)@[0-9a-f]{40}")


def schema_of(name: str) -> dict[str, Any]:
    vendored = resources.files("check_jsonschema") / f"builtin_schemas/vendor/{name}.json"
    found: dict[str, Any] = json.loads(vendored.read_text())
    return found


def targets() -> set[str]:
    text = (REPOSITORY / "Makefile").read_text()
    return set(" ".join(re.findall(r"^([a-z][a-z -]*):", text, re.MULTILINE)).split())


def workflow(path: Path) -> dict[str, Any]:
    # As the schema reads it: in YAML 1.1 the key `on` is a boolean.
    loaded = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    assert isinstance(loaded, dict)
    return loaded


def steps(flow: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for job in flow["jobs"].values():
        for step in job["steps"]:
            yield job, step


def test_there_are_workflows() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "nightly", "release"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_follows_githubs_schema(path: Path) -> None:
    schema = schema_of("github-workflows")
    flow = yaml.safe_load(path.read_text())
    flow["on"] = flow.pop(True)
    jsonschema.validate(flow, schema)
    next(iter(flow["jobs"].values()))["step"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(flow, schema)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_the_makefile_alone_and_may_only_read(path: Path) -> None:
    flow = workflow(path)
    assert flow["permissions"] == {"contents": "read"}
    for job, step in steps(flow):
        assert "timeout-minutes" in job
        if "uses" in step:
            assert ACTIONS.fullmatch(step["uses"])
            continue
        make, target, *_ = step["run"].split()
        assert make == "make"
        wanted = job["strategy"]["matrix"]["target"] if target == "${{" else [target]
        assert set(wanted) <= targets()


def test_a_pull_request_gets_what_ci_runs() -> None:
    flow = workflow(GITHUB / "workflows" / "ci.yml")
    run = (REPOSITORY / ".ci" / "run").read_text()
    here = set(re.findall(r"^make (lint|typecheck|test)\b", run, re.MULTILINE))
    there = set(flow["jobs"]["check"]["strategy"]["matrix"]["target"]) | {"test"}
    assert here == {"lint", "typecheck", "test"}
    assert here <= there


def test_pythons_that_are_tested_are_those_that_are_promised() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    promised = re.findall(r"Python :: (3\.\d+)", text)
    tested = workflow(GITHUB / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert tested["python"] == [promised[0], promised[-1]]


def test_templates_of_issues_have_a_head() -> None:
    jsonschema.validate(
        yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "config.yml").read_text()),
        schema_of("github-issue-config"),
    )
    for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.md"):
        _, head, body = path.read_text().split("---\n", 2)
        assert set(yaml.safe_load(head)) == {"name", "about", "labels"}
        assert body.strip()


def test_what_a_pull_request_asks_for_can_be_done() -> None:
    text = (GITHUB / "pull_request_template.md").read_text()
    [words] = re.findall(r"`make ([a-z -]+)`", text)
    assert set(words.split()) <= targets()


def test_the_development_container_has_what_contributing_tells() -> None:
    container = json.loads((REPOSITORY / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make test-packages dev"
    assert {"test-packages", "dev"} <= targets()
    assert container["forwardPorts"] == [ServeConfig().port]
    assert ".devcontainer" in (REPOSITORY / "CONTRIBUTING.md").read_text()
