"""The messages that cross a process border. docs/protocol.md says what they promise."""
