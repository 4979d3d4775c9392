"""How a connection to NATS tells who it is."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigError

if TYPE_CHECKING:
    import nkeys

# nsc writes `------END`, the specification says `-----END`.
_JWT = re.compile(r"-BEGIN NATS USER JWT-+\s+(\S+)\s+-+END")
_SEED = re.compile(r"-BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END")


@dataclass(frozen=True, slots=True)
class NatsLogin:
    """A user with a password, an nkey, or a credentials file; or nothing of them.

    Files are read anew at every attempt to connect: what is in them may be replaced at any time.
    """

    user: str | None = None
    password: str | None = None
    password_file: Path | None = None
    nkey_file: Path | None = None
    creds: Path | None = None

    @property
    def is_empty(self) -> bool:
        return self == NatsLogin()

    @property
    def has_password(self) -> bool:
        return self.password is not None or self.password_file is not None

    def check(self) -> None:
        """Raises ConfigError for a file that cannot be read, or does not hold what it should."""
        if self.password_file is not None:
            read_secret(self.password_file)
        if self.creds is not None:
            self.jwt()
        if self.creds is not None or self.nkey_file is not None:
            self.key_pair()

    def secret(self) -> str:
        """The password. Raises ConfigError."""
        if self.password_file is not None:
            return read_secret(self.password_file)
        assert self.password is not None
        return self.password

    def jwt(self) -> str:
        """The token of the credentials file. Raises ConfigError."""
        assert self.creds is not None
        return _part_of(self.creds, _JWT, "user JWT")

    def key_pair(self) -> nkeys.KeyPair:
        """The keys of the credentials or the nkey file. Raises ConfigError."""
        import nkeys

        path = self.creds or self.nkey_file
        assert path is not None
        seed = read_secret(path) if self.creds is None else _part_of(path, _SEED, "nkey seed")
        try:
            return nkeys.from_seed(bytearray(seed.encode()))
        except (ValueError, nkeys.NkeysError) as exc:
            raise ConfigError(f"{path} holds no nkey seed: {exc}") from exc


def sign(key_pair: nkeys.KeyPair, nonce: str) -> bytes:
    """What proves to a server that the key is ours."""
    return base64.b64encode(key_pair.sign(nonce.encode()))


def _part_of(path: Path, pattern: re.Pattern[str], what: str) -> str:
    found = pattern.search(read_secret(path))
    if found is None:
        raise ConfigError(f"the credentials file {path} holds no {what}")
    return found[1]


def read_secret(path: Path) -> str:
    """A secret from a file, without the line end. Raises ConfigError."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(f"cannot read the secret file {path}: {reason}") from exc
