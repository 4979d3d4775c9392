"""`python -m worker.engine.native`: builds the decoder ahead for every kernel set, for images that
run elsewhere than they were built; prints where they are.
"""

from __future__ import annotations

import sys

from worker.engine.native.kernel_set import KERNEL_SETS
from worker.engine.native.native_library import build, prebuilt_library


def main() -> None:
    """Raises NativeUnavailable."""
    for kernel_set in KERNEL_SETS:
        path = prebuilt_library(kernel_set)
        build(path, kernel_set)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
