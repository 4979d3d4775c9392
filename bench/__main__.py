"""`make bench`: all benchmarks, one after the other."""

from __future__ import annotations

from bench.plane import main

if __name__ == "__main__":
    main()
