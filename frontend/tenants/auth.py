"""API keys: who may call, and for which tenant."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from frontend.tenants.tenant import EVERYBODY, Tenant
from shared.errors import AuthenticationFailed

_NAME_DIGITS = 12
_NATS = "nats:"  # before the names of NATS users


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, as its SHA-256 digest, or a user whom the NATS server knows; and for whom it is."""

    digest: bytes
    tenant: Tenant

    @property
    def name(self) -> str:
        """What it is called on bills, and tells nothing that it opens; "" where there is none."""
        return self.digest.hex()[:_NAME_DIGITS]

    @classmethod
    def without_limits(cls, key: str) -> ApiKey:
        """One of which nothing else is known: it is a tenant, who is lost with it."""
        data = key.encode()
        name = hashlib.blake2b(data, digest_size=16, person=b"jetflock-owner").hexdigest()
        return cls(hashlib.sha256(data).digest(), Tenant(f"key:{name}"))


def nats_user_digest(name: str) -> bytes:
    """What stands for a NATS user among the digests of keys, and is no key's."""
    return hashlib.blake2b(name.encode(), digest_size=32, person=b"jetflock-nats").digest()


class ApiKeys:
    """The accepted keys. Nothing but digests is held.

    They are looked up by a digest under a secret of this process, which nobody outside can compute,
    and compared in constant time: how long it takes tells nothing of a key.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._secret = secrets.token_bytes(32)
        self._keys = self._by_keyed_digest(keys)
        self._owners = self._by_owner()
        self.is_open = not self._keys

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """From now on these are accepted, and no others. There must be some."""
        found = self._by_keyed_digest(keys)
        assert found, "without keys everybody would be let in"
        self._keys, self.is_open = found, False
        self._owners = self._by_owner()

    def tenant_of(self, authorization: str, nats_user: str = "") -> Tenant:
        """The tenant of `Authorization: Bearer <key>`. Raises AuthenticationFailed."""
        return self.key_of(authorization, nats_user).tenant

    def key_of(self, authorization: str, nats_user: str = "") -> ApiKey:
        """The key that was sent, and whose it is. Raises AuthenticationFailed.

        Whom the NATS server knows by name needs no key. One that is sent all the same says for whom
        this user asks: it must be right, and the request is its tenant's.
        """
        if nats_user and (self.is_open or not authorization):
            return ApiKey(b"", self._tenant_of_nats_user(nats_user))
        if self.is_open:
            return ApiKey(b"", EVERYBODY)
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
        return found

    def tenant_with(self, tenant_id: str) -> Tenant | None:
        """The tenant as it is now; None: no key of theirs is accepted."""
        if tenant_id.startswith(_NATS):
            return self._tenant_of_nats_user(tenant_id.removeprefix(_NATS))
        if self.is_open:
            return EVERYBODY if tenant_id == EVERYBODY.id else None
        tenants = (key.tenant for key in self._keys.values())
        return next((tenant for tenant in tenants if tenant.id == tenant_id), None)

    def tenant_of_owner(self, owner: str) -> Tenant | None:
        """Who bears this name in stored records; None for those of whom no key is held."""
        return self._owners.get(owner)

    def _tenant_of_nats_user(self, name: str) -> Tenant:
        found = self._keys.get(self._keyed(nats_user_digest(name)))
        return Tenant(f"{_NATS}{name}") if found is None else found.tenant

    def _by_keyed_digest(self, keys: Iterable[ApiKey]) -> dict[bytes, ApiKey]:
        return {self._keyed(key.digest): key for key in keys}

    def _by_owner(self) -> dict[str, Tenant]:
        return {key.tenant.owner: key.tenant for key in self._keys.values()}

    def _keyed(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, digest_size=32, key=self._secret).digest()
