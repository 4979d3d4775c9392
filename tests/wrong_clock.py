"""Processes whose clock is wrong: libfaketime (Debian: `apt install faketime`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def wrong_clock(ahead_s: float) -> dict[str, str]:
    """The environment of a process whose wall clock is so far ahead; its monotonic one is right."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        if os.environ.get("CI"):
            pytest.fail("libfaketime is missing: apt install faketime")
        pytest.skip("libfaketime is missing: apt install faketime")
    return {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME": f"{ahead_s:+g}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
