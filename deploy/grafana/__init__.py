"""The dashboard of a running service."""
