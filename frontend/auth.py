"""API keys: who may call, and whose a stream is."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from frontend.tenants.tenant import EVERYBODY, Tenant
from shared.errors import AuthenticationFailed


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, as its SHA-256 digest, and who holds it."""

    digest: bytes
    tenant: Tenant

    @classmethod
    def without_limits(cls, key: str) -> ApiKey:
        """One that was given without a name: it bears one made of its hash."""
        return cls(hashlib.sha256(key.encode()).digest(), Tenant(f"key-{owner_of(key)[:12]}"))


class Identity(NamedTuple):
    """Who asks."""

    owner: str  # hash of the key, which a request belongs to; "" where no key is needed
    tenant: Tenant


class ApiKeys:
    """The accepted keys. Nothing but digests is held.

    They are looked up by a digest under a secret of this process, which nobody outside can compute,
    and compared in constant time: how long it takes tells nothing of a key.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._secret = secrets.token_bytes(32)
        self._keys = self._by_keyed_digest(keys)
        self.is_open = not self._keys

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """From now on these are accepted, and no others. There must be some."""
        found = self._by_keyed_digest(keys)
        assert found, "without keys everybody would be let in"
        self._keys, self.is_open = found, False

    def identify(self, authorization: str) -> Identity:
        """Of `Authorization: Bearer <key>`. Raises AuthenticationFailed."""
        if self.is_open:
            return Identity("", EVERYBODY)
        scheme, _, key = authorization.partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise AuthenticationFailed(
                "No API key was given: send it as 'Authorization: Bearer <key>'."
            )
        digest = hashlib.sha256(key.encode()).digest()
        found = self._keys.get(self._keyed(digest))
        if found is None or not hmac.compare_digest(found.digest, digest):
            raise AuthenticationFailed("The API key is not known here.")
        return Identity(owner_of(key), found.tenant)

    def tenant_named(self, name: str) -> Tenant | None:
        """The holder of this name; None: no key of theirs is accepted now."""
        if self.is_open:
            return EVERYBODY if name == EVERYBODY.name else None
        return next((key.tenant for key in self._keys.values() if key.tenant.name == name), None)

    def _by_keyed_digest(self, keys: Iterable[ApiKey]) -> dict[bytes, ApiKey]:
        return {self._keyed(key.digest): key for key in keys}

    def _keyed(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, digest_size=32, key=self._secret).digest()


def owner_of(key: str) -> str:
    """The hash that stands for a key in requests and logs."""
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"jetflock-owner").hexdigest()
