"""Requests that are sent twice and run once."""
