"""API keys: who may call, and whose a stream is."""

from __future__ import annotations

import hashlib

from shared.errors import AuthenticationFailed


class ApiKeys:
    """The accepted keys. Only hashes are held and compared, so timing tells nothing of a key."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._owners = frozenset(_owner(key) for key in keys)

    def owner(self, authorization: str) -> str:
        """Hash that names the key in `Authorization: Bearer <key>`; "" when no key is needed.

        Raises AuthenticationFailed.
        """
        if not self._owners:
            return ""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationFailed(
                "No API key was given: send it as 'Authorization: Bearer <key>'."
            )
        owner = _owner(key.strip())
        if owner not in self._owners:
            raise AuthenticationFailed("The API key is not known here.")
        return owner


def _owner(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"jetflock-owner").hexdigest()
