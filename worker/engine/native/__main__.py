"""`python -m worker.engine.native`: builds the decoder ahead, for images; prints where it is."""

from __future__ import annotations

import sys

from worker.engine.native.native_library import PORTABLE_FLAGS, build, prebuilt_library


def main() -> None:
    """Raises NativeUnavailable."""
    build(prebuilt_library(), PORTABLE_FLAGS)
    sys.stdout.write(f"{prebuilt_library()}\n")


if __name__ == "__main__":
    main()
