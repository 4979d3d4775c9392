"""The NATS surface: requests, replies and streams without HTTP."""
