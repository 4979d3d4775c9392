"""Damages what nats-server has stored."""

from __future__ import annotations

import random
from pathlib import Path


def flip_byte(store: Path, stream: str, rng: random.Random) -> None:
    """One bit of one message block of a stream becomes another. The server must not run."""
    blocks = sorted(store.glob(f"jetstream/*/streams/{stream}/msgs/*.blk"))
    sizes = [block.stat().st_size for block in blocks]
    (block,) = rng.choices(blocks, weights=sizes)
    with block.open("r+b") as file:
        offset = rng.randrange(block.stat().st_size)
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << rng.randrange(8))]))
