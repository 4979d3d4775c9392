"""Why packed weights are not taken from disk, or not put there."""

from __future__ import annotations


class PackedError(Exception):
    """The message says why; the weights are read from the checkpoint instead."""


class DamagedFile(PackedError):
    """A file that is not what was written for these weights."""


class NoRoom(PackedError):
    """There is no room for them within the bound, or on the disk."""
