"""This package lets requests with the same idempotency key share one generation, at all
frontends."""
