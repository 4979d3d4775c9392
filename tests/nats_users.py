"""A nats-server with the users of `jetflock nats-users`, and their logins."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from deploy.nats.__main__ import accounts_config, users_config, write_users
from deploy.nats.permissions import (
    Permissions,
    on_prefixes,
    permissions,
    to_other_accounts,
    with_clients,
)
from shared.subjects import Subjects
from tests.nats_server import NatsServer

SERVICE_NAME = "jetflock"
ROLES = permissions(Subjects(), SERVICE_NAME)


class NatsUsers:
    """Clients besides the roles: in their account, or each in one of its own."""

    def __init__(
        self,
        folder: Path,
        clients: Sequence[str],
        *,
        accounts: bool = False,
        prefixes: Sequence[str] = ("jf",),
    ) -> None:
        roles = on_prefixes(prefixes, SERVICE_NAME)
        self.folder = folder
        self.clients = clients
        self.callers = "accounts" if accounts else "users"
        self.rights: dict[str, Permissions] = with_clients(roles, SERVICE_NAME, clients)
        layout = functools.partial(users_config, self.rights)
        if accounts:
            layout = functools.partial(
                accounts_config, to_other_accounts(roles), SERVICE_NAME, clients, 3600.0
            )
        write_users(folder, (*roles, *clients), layout)

    def server(self, config: str = "") -> NatsServer:
        """Not started yet."""
        return NatsServer(self.folder, config=f'include "users.conf"\n{config}')

    def password_file(self, user: str) -> Path:
        return self.folder / f"{user}.password"

    def options(self, user: str, prefix: str = "nats_") -> dict[str, Any]:
        """Of a role's configuration."""
        return {f"{prefix}user": user, f"{prefix}password_file": self.password_file(user)}

    def frontend_options(self) -> dict[str, Any]:
        return {
            **self.options("frontend"),
            **self.options("service", "nats_service_"),
            **self.options("eraser", "nats_eraser_"),
            "nats_callers": self.callers,
        }

    async def connect(self, url: str, user: str, **options: Any) -> Client:
        """A plain client."""
        nc = Client()
        await nc.connect(
            url,
            user=user,
            password=self.password_file(user).read_text().strip(),
            **{"inbox_prefix": f"_INBOX_{user}", **options},
        )
        return nc
