"""The file of API keys: what it may hold, and errors that say where they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from frontend.config import FrontendConfig
from frontend.tenants.auth import ApiKey, ApiKeys
from frontend.tenants.key_file import read_key_file
from frontend.tenants.tenant import Tenant
from shared.errors import AuthenticationFailed, ConfigError

GOOD = """\
keys:
  - name: alice
    key: sk-alice
    max_concurrent: 16
    requests_per_minute: 600
    tokens_per_minute: 100000
    weight: 2
  - name: bob@example.org
    key_sha256: {digest}
"""


def identify(keys: list[ApiKey], key: str) -> Tenant:
    return ApiKeys(keys).tenant_of(f"Bearer {key}")


@pytest.mark.parametrize("is_json", [False, True])
def test_keys_may_be_plain_or_hashed_in_yaml_or_json(tmp_path: Path, is_json: bool) -> None:
    path = tmp_path / "keys"
    text = GOOD.format(digest=hashlib.sha256(b"sk-bob").hexdigest())
    if is_json:
        import yaml

        text = json.dumps(yaml.safe_load(text), indent="\t")
    path.write_text(text)
    keys = read_key_file(path)
    assert identify(keys, "sk-alice") == Tenant("alice", 2.0, 16, 600, 100_000)
    assert identify(keys, "sk-bob") == Tenant("bob@example.org")
    for wrong in ("sk-alic", "sk-alice2", hashlib.sha256(b"sk-bob").hexdigest(), ""):
        with pytest.raises(AuthenticationFailed):
            identify(keys, wrong)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("keys:\n- {name: a, key: x}\n- {name: a, key: y}\n", ":3: name 'a' is taken by line 2"),
        ("keys:\n- {name: a, key: x}\n- {name: b, key: x}\n", ":3: 'b' has the same key as 'a'"),
        ("keys:\n- name: a\n", ":2: the key of 'a' needs one of 'key'"),
        (
            "keys:\n- name: a\n  key: x\n  max_concurrent: 0\n",
            r":4: max_concurrent \(0\): Expected",
        ),
        (
            "keys:\n- name: a\n  key: x\n  rpm: 1\n",
            ":4: unknown field 'rpm', must be one of max_concurrent,",
        ),
        ("keys:\n- name: a\n  key: x\n  key: y\n", ":4: field 'key' is given twice"),
        ("keys:\n- name: a\n  key: 12\n", ":3: key: Expected"),
        ("keys:\n- name: ' '\n  key: x\n", ":2: name"),
        ("keys:\n- key: x\n", ":2: entry: Object missing required field `name`"),
        ("keys:\n- name: a\n  key_sha256: abc\n", ":3: key_sha256"),
        ("keys:\n- just-a-key\n", ":2: an entry of 'keys' must be a mapping"),
        ("tenants:\n- id: a\n", ":2: entry: Object missing required field `keys`"),
        ("tenants:\n- id: a\n  keys: []\n", r":3: keys: Expected `array` of length >= 1"),
        ("tenants:\n- id: a\n  keys:\n  - sk-x\n", ":4: an entry of 'keys' must be a mapping"),
        ("tenants:\n- id: a\n  keys:\n  - {}\n", ":4: the key of 'a' needs one of 'key'"),
        ("tenants:\n- id: a\n  keys:\n  - {key: x}\n  - {key: x}\n", ":5: 'a' has the same key"),
        ("tenants:\n- id: a\n  keys: [{key: x, limit: 1}]\n", ":3: unknown field 'limit'"),
        ("tenants:\n- id: key:0\n  keys: [{key: x}]\n", ":2: id .'key:0'.: Expected"),
        (
            "keys:\n- {name: a, key: x}\ntenants:\n- id: a\n  keys: [{key: y}]\n",
            ":4: id 'a' is taken by line 2",
        ),
        ("users:\n- name: a\n", ":1: unknown field 'users'"),
        ("keys: []\n", "holds no API key"),
        ("", "must hold a mapping"),
        ("keys:\n - {\n", r":3: expected|:3: did not find"),
    ],
)
def test_errors_name_line_and_field(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=error) as caught:
        read_key_file(path)
    assert str(path) in str(caught.value)


def test_a_tenant_has_several_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"old").hexdigest()
    path.write_text(
        f"tenants:\n- id: a\n  weight: 2\n  keys: [{{key: new}}, {{key_sha256: {digest}}}]\n"
        "- id: b\n  keys: [{key: other}]\n"
    )
    keys = read_key_file(path)
    assert identify(keys, "new") == identify(keys, "old") == Tenant("a", 2.0)
    assert identify(keys, "other") == Tenant("b")


def test_the_owner_is_that_of_the_id_and_of_no_key(tmp_path: Path) -> None:
    """The name of the form with one key is the id: a key that is replaced loses nothing."""
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n- {name: a, key: old}\n")
    before = identify(read_key_file(path), "old")
    path.write_text("tenants:\n- id: a\n  keys: [{key: new}]\n")
    after = identify(read_key_file(path), "new")
    assert before.owner == after.owner
    assert len(after.owner) == 32
    assert Tenant("A").owner != after.owner
    assert Tenant().owner == ""


@pytest.mark.parametrize(
    "text",
    ["keys:\n- name: a\n  key: [sk-secret]\n", "tenants:\n- id: a\n  keys: {key: sk-secret}\n"],
)
def test_a_key_is_never_part_of_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_key_file(path)
    assert "sk-secret" not in str(caught.value)


def test_a_key_in_both_files_has_its_limits(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n- {name: a, key: x, max_concurrent: 3}\n")
    keys = FrontendConfig(api_keys_file=path, api_key=("x", "y")).api_keys()
    assert identify(keys, "x") == Tenant("a", max_concurrent=3)
    assert identify(keys, "y").id.startswith("key:")
    assert len({identify(keys, name).id for name in "xy"}) == 2


def test_a_file_without_end_is_not_read_for_ever() -> None:
    with pytest.raises(ConfigError, match="more than 16777216 characters are no API keys"):
        read_key_file(Path("/dev/zero"))
