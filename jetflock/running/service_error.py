"""A service that could not do what a command asked of it."""

from __future__ import annotations

from shared.errors import JetflockError


class ServiceError(JetflockError):
    """The service refused, failed, or does not answer."""

    exit_status = 1
