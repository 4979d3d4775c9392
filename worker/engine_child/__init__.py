"""Starts the engine as a child process, keeps it running, and hears its events."""
