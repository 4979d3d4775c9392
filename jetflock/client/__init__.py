"""This package is the Python client: an executor's verbs over NATS, whose streams resume by
themselves."""

from jetflock.client.client import Client

__all__ = ["Client"]
