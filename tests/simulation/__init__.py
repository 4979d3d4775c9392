"""The protocol's own code under a simulated broker and clock: seeded schedules of faults.

`python -m tests.simulation --help` runs it by hand; `docs/protocol.md` says what it checks.
"""
