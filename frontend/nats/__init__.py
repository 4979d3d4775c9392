"""This package serves the API over NATS: a micro service takes the bodies of the HTTP API and sends
its events."""
