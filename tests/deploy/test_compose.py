"""deploy/compose.yaml follows the Compose specification, and tells the roles what they read."""

from __future__ import annotations

import dataclasses
import json
import re
from importlib import resources
from typing import Any

import jsonschema
import pytest
import yaml

from detok.config import DetokConfig
from frontend.config import FrontendConfig
from shared.config import ClusterConfig
from tests.deploy.local_stack import REPOSITORY
from tests.deploy.test_role_images import instructions
from worker.config import WorkerConfig

FOLDER = REPOSITORY / "deploy"
ROLES: dict[str, type[ClusterConfig]] = {
    "frontend": FrontendConfig,
    "detok": DetokConfig,
    "worker": WorkerConfig,
    "worker-gpu": WorkerConfig,
}
PUBLIC_IMAGES = {"nats", "prom/prometheus", "grafana/grafana"}

Service = dict[str, Any]


def defaults() -> dict[str, str]:
    lines = (FOLDER / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def interpolated(text: str) -> str:
    """As Compose does with deploy/.env. Raises KeyError for a variable without a default."""

    def value(match: re.Match[str]) -> str:
        name, _, fallback = match[1].partition(":-")
        return fallback if ":-" in match[1] else defaults()[name]

    return re.sub(r"\$\{([^}]+)\}", value, text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(interpolated((FOLDER / "compose.yaml").read_text()))
    return loaded


def started(compose: dict[str, Any], *profiles: str) -> set[str]:
    return {
        name
        for name, service in compose["services"].items()
        if not service.get("profiles") or set(service["profiles"]) & set(profiles)
    }


def test_it_follows_the_specification(compose: dict[str, Any]) -> None:
    vendored = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(vendored.read_text())
    jsonschema.validate(compose, schema)
    compose["services"]["nats"]["imagee"] = "nats"
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        jsonschema.validate(compose, schema)
    del compose["services"]["nats"]["imagee"]


def test_profiles_choose_the_worker(compose: dict[str, Any]) -> None:
    assert started(compose, defaults()["COMPOSE_PROFILES"]) == {
        "nats", "frontend", "detok", "worker"
    }  # fmt: skip
    assert started(compose, "gpu") == {"nats", "frontend", "detok", "worker-gpu"}
    assert started(compose, "observability") - started(compose) == {"prometheus", "grafana"}


@pytest.mark.parametrize("name", ROLES)
def test_roles_understand_what_they_are_told(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    fields = {field.name for field in dataclasses.fields(ROLES[name])}
    for variable in service["environment"]:
        if variable.startswith("JETFLOCK_"):
            assert variable.removeprefix("JETFLOCK_").lower() in fields
    assert service["command"][0] == name.split("-")[0]
    assert service["environment"]["JETFLOCK_NATS_URL"] == "nats://nats:4222"


@pytest.mark.parametrize("name", ROLES)
def test_roles_are_built_here_and_wait_for_nats(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    build = service["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
    assert f"AS {build['target']}" in " ".join(instructions("FROM"))
    assert service["image"] == f"jetflock-{build['target']}"
    assert service["depends_on"] == {"nats": {"condition": "service_healthy"}}
    assert "healthcheck" in service
    assert service["read_only"]


def test_only_public_images_and_declared_volumes(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if name not in ROLES:
            assert service["image"].split(":")[0] in PUBLIC_IMAGES
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            known = source in compose["volumes"] or (FOLDER / source).is_dir()
            assert known, volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    assert "healthcheck" in compose["services"]["nats"]


def test_prometheus_and_grafana_find_their_files(compose: dict[str, Any]) -> None:
    files = {name: FOLDER / config["file"] for name, config in compose["configs"].items()}
    assert all(file.is_file() for file in files.values())
    mounts = {
        mount["target"]: files[mount["source"]]
        for name in ("prometheus", "grafana")
        for mount in compose["services"][name]["configs"]
    }
    assert set(mounts.values()) == set(files.values())
    main = yaml.safe_load(mounts["/etc/prometheus/prometheus.yml"].read_text())
    assert all(f"/etc/prometheus/{name}" in mounts for name in main["rule_files"])
    [provider] = yaml.safe_load(files["dashboards"].read_text())["providers"]
    assert f"{provider['options']['path']}/jetflock.json" in mounts
    [job] = main["scrape_configs"]
    scraped = {name for each in job["dns_sd_configs"] for name in each["names"]}
    assert scraped == set(ROLES)
