"""What the admin plane's HTTP server is configured with."""

# No `from __future__ import annotations` here: the types of the fields are read at run time.

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jetflock.running.running_service import ServiceConfig
from shared.errors import AuthenticationFailed, ConfigError
from shared.nats_login import read_secret
from shared.status.http_host import HostRule, is_loopback_name

if TYPE_CHECKING:  # it needs a frontend's libraries, which `jetflock admin` has no other use for
    from jetflock.admin_plane.page_origins import PageOrigins


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


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ServiceConfig):
    """Flags of `jetflock admin serve`; each is also an environment variable and a YAML key."""

    admin_host: str = "127.0.0.1"
    """Address to listen on; without a key only a loopback address."""
    admin_port: int = 8001
    """Port to listen on; 0 picks a free one."""
    admin_key: str | None = None
    """Key that every request must bring as its bearer token."""
    admin_key_file: Path | None = None
    """File that holds the key."""
    admin_page_origin: tuple[str, ...] = ()
    """Origins of pages that may give orders with the key: that of the frontend's page."""

    def checked_key(self) -> AdminKey:
        """Raises ConfigError for an address that anybody could reach without a key."""
        key = self.admin_key
        if self.admin_key_file is not None:
            key = read_secret(self.admin_key_file)
            if not key:
                raise ConfigError(f"{self.admin_key_file} holds no key")
        if key is not None and not key.strip():
            raise ConfigError("the admin key is empty; give one, or none at all")
        if key is None and not is_loopback_name(self.admin_host):
            raise ConfigError(
                f"--admin-host {self.admin_host} can be reached by others: give --admin-key-file"
            )
        return AdminKey(key)

    def host_rule(self) -> HostRule | None:
        """The names by which it may be called; with a key it may be any."""
        if self.admin_key is not None or self.admin_key_file is not None:
            return None
        return HostRule.of(self.admin_host, self.allowed_hosts)

    def checked_page_origins(self) -> "PageOrigins":
        """Raises ConfigError for what is no origin, and for any when there is no key: whoever can
        put words on a page would be an operator.
        """
        from jetflock.admin_plane.page_origins import PageOrigins

        if self.admin_page_origin and self.admin_key is None and self.admin_key_file is None:
            raise ConfigError(
                "--admin-page-origin needs a key that the page's user must know: give "
                "--admin-key-file"
            )
        return PageOrigins(self.admin_page_origin)
