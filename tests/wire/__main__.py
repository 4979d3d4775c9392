"""`python -m tests.wire`: writes the bytes of this version that are not there yet."""

from __future__ import annotations

from pathlib import Path

from tests.wire.examples import VERSION, written

GOLDEN = Path(__file__).parent / "golden"


def main() -> None:
    """What is there is never written again."""
    folder = GOLDEN / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in written().items():
        path = folder / f"{name}.msgpack"
        if not path.exists():
            path.write_bytes(data)
            print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
