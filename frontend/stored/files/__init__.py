"""This package keeps files of API keys: their records in KV, their contents in an object store."""
