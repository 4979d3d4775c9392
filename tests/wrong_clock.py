"""Processes whose clock is wrong: Python's by libfaketime (Debian: `apt install faketime`), and
nats-server's, which libfaketime does not reach, by a change of its program.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

# How Go's `time.now` on x86-64 reads what the kernel has written, and where it goes on:
# mov rax, [rsp+16] (seconds); mov rdi, [rsp+24]; mov rcx, [rsp]; imul rcx, 1_000_000_000
_READ_SECONDS = bytes.fromhex("488b442410")
_TIME_NOW = _READ_SECONDS + bytes.fromhex("488b7c2418488b0c244869c900ca9a3b")
_ADD_TO_SECONDS = bytes.fromhex("4805")  # add rax, and 32 bits
_JUMP = b"\xe9"  # and 32 bits, from behind them
_JUMP_LEN = 5
_UNUSED = b"\xcc"  # fills the room between two functions


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


def server_with_wrong_clock(binary: Path, ahead_s: int, copy: Path) -> Path:
    """A copy of a Go program for x86-64 whose wall clock is so far ahead, and its monotonic one
    right: `time.now` takes a way round by a piece of code that adds the seconds.
    """
    program = bytearray(binary.read_bytes())
    place = program.find(_TIME_NOW)
    assert place >= 0, f"{binary} reads the clock in another way"
    assert program.count(_TIME_NOW) == 1, f"{binary} reads the clock in several places"
    added = _READ_SECONDS + _ADD_TO_SECONDS + struct.pack("<i", ahead_s)
    room = program.find(_UNUSED * (len(added) + _JUMP_LEN), place)
    assert room >= 0, f"{binary} has no room for more code"
    back = room + len(added)
    program[room:back] = added
    program[back : back + _JUMP_LEN] = _jump(back, place + _JUMP_LEN)
    program[place : place + _JUMP_LEN] = _jump(place, room)
    copy.write_bytes(program)
    copy.chmod(0o755)
    return copy


def _jump(at: int, to: int) -> bytes:
    return _JUMP + struct.pack("<i", to - (at + _JUMP_LEN))
