"""`make bench`: all benchmarks, one after the other."""

from __future__ import annotations

from bench import engine, plane

if __name__ == "__main__":
    plane.main()
    engine.main()
