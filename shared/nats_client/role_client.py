"""The NATS client of a role: it outlives refusals, and takes its credentials from their files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import nats.errors

from shared.errors import ConfigError
from shared.nats_client.watched_client import WatchedClient
from shared.nats_login import NatsLogin, sign

_PERMISSIONS = "permissions violation"  # of one subject: the connection stays

T = TypeVar("T")


class RoleClient(WatchedClient):
    """nats-py's client closes for good when the server refuses it, which it does to everybody whose
    credentials were replaced or have expired. This one connects anew, with what is there then.
    """

    def __init__(self, login: NatsLogin) -> None:
        super().__init__()
        self._login = login
        self.last_refusal = ""  # what the server last said that we may not do, in lower case

    def login_options(self) -> dict[str, Any]:
        """The options of `connect`: callbacks, which are asked at every attempt."""
        login = self._login
        if login.creds is not None:
            return {
                "user_jwt_cb": lambda: bytearray(_now(login.jwt).encode()),
                "signature_cb": self._sign,
            }
        if login.nkey_file is not None:
            return {"signature_cb": self._sign}
        if login.has_password:
            return {"user": login.user, "password": lambda: _now(login.secret)}
        return {"user": login.user}

    def _sign(self, nonce: str) -> bytes:
        key_pair = _now(self._login.key_pair)
        self._public_nkey = key_pair.public_key.decode()  # sent beside the signature
        return sign(key_pair, nonce)

    async def _process_err(self, err_msg: str) -> None:
        if _PERMISSIONS in err_msg:
            self.last_refusal = err_msg.strip("'")
            await super()._process_err(err_msg)
        else:
            await self._process_op_err(nats.errors.Error(f"nats: {err_msg}"))


def _now(read: Callable[[], T]) -> T:
    """A file may be half written at this moment: the next attempt reads it again."""
    try:
        return read()
    except ConfigError as exc:
        raise nats.errors.Error(str(exc)) from exc
