"""The whole way with real processes, and what is left of it when one of them dies."""
