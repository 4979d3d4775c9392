"""What the admin plane's HTTP server is configured with."""

# No `from __future__ import annotations` here: the types of the fields are read at run time.

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from jetflock.admin_key import AdminKey
from jetflock.page_origins import PageOrigins
from shared.config import ClusterConfig, read_secret
from shared.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClusterConfig):
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
        if key is None and not _is_loopback(self.admin_host):
            raise ConfigError(
                f"--admin-host {self.admin_host} can be reached by others: give --admin-key-file"
            )
        return AdminKey(key)

    def checked_page_origins(self) -> PageOrigins:
        """Raises ConfigError for what is no origin, and for any when there is no key: whoever can
        put words on a page would be an operator.
        """
        if self.admin_page_origin and self.admin_key is None and self.admin_key_file is None:
            raise ConfigError(
                "--admin-page-origin needs a key that the page's user must know: give "
                "--admin-key-file"
            )
        return PageOrigins(self.admin_page_origin)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
