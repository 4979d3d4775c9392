"""Starts the engine as a child process, keeps it running, and reads its events."""
