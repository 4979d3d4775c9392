"""Damaged and hostile files of an adapter are refused in a sentence, and by the same reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shared.checkpoint.lora_files import CONFIG_FILE, WEIGHTS_FILE, LoraFiles
from shared.errors import ConfigError
from tests.lora_adapters import make_lora_files

pytestmark = pytest.mark.torch  # the adapters are made with it

Change = Callable[[bytes], bytes]


def with_head(head: bytes) -> Change:
    return lambda _: len(head).to_bytes(8, "little") + head


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        (WEIGHTS_FILE, lambda whole: whole[:-1], "is cut: it has .* bytes, its head says"),
        (WEIGHTS_FILE, lambda whole: whole + b"x", "has .* bytes, its head says"),
        (WEIGHTS_FILE, lambda whole: whole[:40], "is cut"),
        (WEIGHTS_FILE, lambda _: b"", "is cut: it has 0 bytes"),
        (WEIGHTS_FILE, lambda whole: b"\xff" * 8 + whole[8:], "its head would have"),
        (WEIGHTS_FILE, with_head(b"{}"), "holds no tensors"),
        (WEIGHTS_FILE, with_head(b'{"a":' + b"[" * 1_000_000), "no readable safetensors file"),
        (WEIGHTS_FILE, lambda whole: whole.replace(b'"F32"', b'"F33"'), "is of type 'F33'"),
        (WEIGHTS_FILE, lambda whole: whole.replace(b"[4,4]", b"[9,4]"), "do not hold F32 of shape"),
        (WEIGHTS_FILE, lambda whole: whole.replace(b"[4,4]", b"[2,8]"), r"shape \[2, 8\], and r"),
        (CONFIG_FILE, lambda _: b"[" * 1_000_000, "is not JSON"),
        (CONFIG_FILE, lambda _: b"[]", "is not a JSON object"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, file: str, change: Change, named: str) -> None:
    path = tmp_path / "one"
    files = make_lora_files(path, 1.0)
    assert LoraFiles.read(path) == files
    changed = change((path / file).read_bytes())
    assert changed != (path / file).read_bytes()
    (path / file).write_bytes(changed)
    with pytest.raises(ConfigError, match=named) as caught:
        LoraFiles.read(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000
