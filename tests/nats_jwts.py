"""Identities of a nats-server in operator mode: nkeys, JWTs, credentials files."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import Any

import nkeys
from nacl.signing import SigningKey


def make_nkey(prefix: int) -> tuple[str, nkeys.KeyPair]:
    """Public key and pair of a new identity (prefix: nkeys.PREFIX_BYTE_...)."""
    seed = nkeys.encode_seed(bytes(SigningKey.generate()), prefix)
    pair = nkeys.from_seed(bytearray(seed))
    return pair.public_key.decode(), pair


def make_jwt(
    subject: str, issuer: str, signer: nkeys.KeyPair, name: str, nats: Any, **more: Any
) -> str:
    """A NATS JWT: its claims signed with the issuer's nkey."""

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    claims = {
        "jti": hashlib.sha256(name.encode()).hexdigest(),
        "iat": int(time.time()),
        "iss": issuer,
        "name": name,
        "sub": subject,
        "nats": nats | {"version": 2},
        **more,
    }
    head = encode(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = encode(json.dumps(claims).encode())
    return f"{head}.{body}.{encode(signer.sign(f'{head}.{body}'.encode()))}"


class JwtAccount:
    """An account with JetStream, of an operator of its own."""

    def __init__(self) -> None:
        operator, operator_pair = make_nkey(nkeys.PREFIX_BYTE_OPERATOR)
        system, _ = make_nkey(nkeys.PREFIX_BYTE_ACCOUNT)
        self._id, self._pair = make_nkey(nkeys.PREFIX_BYTE_ACCOUNT)
        no_jetstream = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn"), -1)
        unlimited = dict.fromkeys(
            ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage",
             "disk_storage", "streams", "consumer"), -1,
        ) | {"wildcards": True}  # fmt: skip

        def account(subject: str, name: str, limits: Any) -> str:
            claims = {"type": "account", "limits": limits}
            return make_jwt(subject, operator, operator_pair, name, claims)

        claims = {"type": "operator", "system_account": system}
        operator_jwt = make_jwt(operator, operator, operator_pair, "op", claims)
        self.config = (
            f"operator: {operator_jwt}\nsystem_account: {system}\nresolver: MEMORY\n"
            f"resolver_preload: {{ {self._id}: {account(self._id, 'acc', unlimited)}, "
            f"{system}: {account(system, 'sys', no_jetstream)} }}"
        )

    def creds(self, lifetime_s: float | None = None) -> str:
        """A credentials file of a new user."""
        user, pair = make_nkey(nkeys.PREFIX_BYTE_USER)
        claims = {"type": "user", "subs": -1, "data": -1, "payload": -1}
        more = {} if lifetime_s is None else {"exp": int(time.time() + lifetime_s)}
        jwt = make_jwt(user, self._id, self._pair, "user", claims, **more)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{bytes(pair.seed).decode()}\n"
            "------END USER NKEY SEED------\n"
        )
