"""Streams that go on where they were cut, on any frontend."""
