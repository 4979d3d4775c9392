"""The file of API keys: what it may hold, and errors that say where they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from frontend.auth import ApiKey, ApiKeys
from frontend.config import FrontendConfig
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
    return ApiKeys(keys).identify(f"Bearer {key}").tenant


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
        ("keys:\n- name: a\n", ":2: the key of 'a' needs 'key' or 'key_sha256'"),
        (
            "keys:\n- name: a\n  key: x\n  max_concurrent: 0\n",
            r":4: max_concurrent \(0\): Expected",
        ),
        ("keys:\n- name: a\n  key: x\n  rpm: 1\n", ":4: unknown field 'rpm', must be one of name,"),
        ("keys:\n- name: a\n  key: x\n  key: y\n", ":4: field 'key' is given twice"),
        ("keys:\n- name: a\n  key: 12\n", ":3: key: Expected"),
        ("keys:\n- name: ' '\n  key: x\n", ":2: name"),
        ("keys:\n- key: x\n", ":2: entry: Object missing required field `name`"),
        ("keys:\n- name: a\n  key_sha256: abc\n", ":3: key_sha256"),
        ("keys:\n- just-a-key\n", ":2: an entry of 'keys' must be a mapping"),
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


def test_a_key_is_never_part_of_an_error(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n- name: a\n  key: [sk-secret]\n")
    with pytest.raises(ConfigError) as caught:
        read_key_file(path)
    assert "sk-secret" not in str(caught.value)


def test_a_key_in_both_files_has_its_limits(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n- {name: a, key: x, max_concurrent: 3}\n")
    keys = FrontendConfig(api_keys_file=path, api_key=("x", "y")).api_keys()
    assert identify(keys, "x") == Tenant("a", max_concurrent=3)
    assert identify(keys, "y").name.startswith("key-")
    assert len({identify(keys, name).name for name in "xy"}) == 2
