"""The key of the admin plane."""

from __future__ import annotations

import hmac

from shared.errors import AuthenticationFailed


class AdminKey:
    """Compared in a time that tells nothing of it. None: everybody who gets here may."""

    def __init__(self, key: str | None) -> None:
        self._key = None if key is None else key.encode()

    def check(self, authorization: str) -> None:
        """`authorization` is the header. Raises AuthenticationFailed."""
        if self._key is None:
            return
        scheme, _, key = authorization.partition(" ")
        is_right = hmac.compare_digest(key.strip().encode(errors="replace"), self._key)
        if scheme.lower() != "bearer" or not is_right:
            raise AuthenticationFailed(
                "The admin plane needs its key: 'Authorization: Bearer <key>'."
            )
