"""Grammars that outputs follow: compiled in threads, kept, and advanced token by token."""
