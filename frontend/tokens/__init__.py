"""Text to token ids and back, for clients that want to count."""
