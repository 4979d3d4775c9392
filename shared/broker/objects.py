"""An object store: what is too large for a message, in pieces, each under a name."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, Any

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NotFoundError
from nats.js.object_store import ObjectStore

from shared.broker.jetstream import ERR_STORE_FAILED, JetStream, StoredMessage
from shared.errors import BrokerUnavailable, CasConflict, LimitReached, NotFound

PUT_TIMEOUT_S = 300.0  # of one object, in or out
_READING_S = 5.0  # one look at the clock serves so long: ages here are minutes and hours
_IN_USE = "in use"


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """An object as its name tells of it."""

    name: str
    piece_id: str  # its pieces stand under this; "" when the entry cannot be read
    seq: int  # of its name, which changes whenever it is stored or confirmed
    age_s: float  # since then, at least
    is_confirmed: bool  # somebody has said since it was stored that it is in use


class Objects:
    """Operations on one store. What somebody cuts short leaves pieces without a name, which
    `nameless` finds.
    """

    def __init__(self, js: JetStream, bucket: str) -> None:
        self._js = js
        self._bucket = bucket
        self._stream = f"OBJ_{bucket}"
        self._pieces = f"$O.{bucket}.C."
        self._names = f"$O.{bucket}.M."

    async def put(self, name: str, content: bytes | IO[bytes]) -> int:
        """Whatever was there; from its present position. Returns its bytes.

        Raises LimitReached when the store is full, or BrokerUnavailable.
        """
        try:
            async with asyncio.timeout(PUT_TIMEOUT_S):
                info = await (await self._store()).put(name, content)  # type: ignore[arg-type]  # it needs no more than readinto
        except APIError as exc:
            if exc.err_code == ERR_STORE_FAILED and "maximum" in (exc.description or ""):
                raise LimitReached(str(exc.description), ERR_STORE_FAILED) from exc
            raise BrokerUnavailable(f"object {name} was not stored: {exc}") from exc
        except (NatsError, TimeoutError) as exc:
            raise BrokerUnavailable(f"object {name} was not stored: {exc!r}") from exc
        return info.size or 0

    async def get(self, name: str, into: IO[bytes] | None = None) -> bytes:
        """Its bytes, or b"" when they were written `into` something.

        Raises NotFound or BrokerUnavailable.
        """
        try:
            async with asyncio.timeout(PUT_TIMEOUT_S):
                result = await (await self._store()).get(name, writeinto=into)  # type: ignore[arg-type]  # it only writes
        except NotFoundError as exc:
            raise NotFound(f"No object {name!r} is stored.") from exc
        except (NatsError, TimeoutError) as exc:  # also: pieces of it, from a replica that lags
            raise BrokerUnavailable(f"could not fetch object {name}: {exc!r}") from exc
        return result.data or b""

    async def find(self, name: str) -> ObjectEntry | None:
        """The object as the leader knows it. Raises BrokerError."""
        message = await self._js.get_last(self._stream, self._subject(name))
        return None if message is None or _is_deleted(message) else await self._entry(message)

    async def all(self) -> AsyncIterator[ObjectEntry]:
        """All that the leader held at the call. Raises BrokerError."""
        async for message in self._js.proven_scan(self._stream, f"{self._names}>"):
            if not _is_deleted(message):
                yield await self._entry(message)

    async def confirm(self, entry: ObjectEntry) -> bool:
        """Its name is stored anew, and says that it is in use: whoever would delete what he has
        seen earlier finds another one. False when it has changed, or the store is full.

        Raises BrokerError.
        """
        message = await self._js.get_at(self._stream, entry.seq)
        if message is None:
            return False
        told = msgspec.json.encode({**_info(message), "description": _IN_USE})
        subject = self._subject(entry.name)
        try:
            await self._js.publish(subject, told, expected_last=entry.seq, rolls_up=True)
        except (CasConflict, LimitReached):
            return False
        return True

    async def delete(self, name: str) -> None:
        """It need not be there, and a full store needs no room for it. Raises BrokerError."""
        if (entry := await self.find(name)) is not None:
            await self._purge(f"{self._pieces}{entry.piece_id}")
            await self._purge(self._subject(name), entry.seq)

    async def delete_unchanged(self, entry: ObjectEntry) -> bool:
        """Deletes it unless somebody has confirmed or replaced it since; returns whether it is
        gone.

        Raises BrokerError.
        """
        subject = self._subject(entry.name)
        await self._js.purge_for_good(self._stream, subject, below=entry.seq + 1)
        if await self.find(entry.name) is not None:
            return False
        await self._purge(f"{self._pieces}{entry.piece_id}")
        return True

    async def erase(self, name: str) -> None:
        """It need not be there. What is left when it is cut short, another call finds.

        Deleting leaves the bytes in the server's files, this does not. Raises BrokerError.
        """
        if (message := await self._js.get_last(self._stream, self._subject(name))) is None:
            return
        if piece_id := _piece_id(message):
            await self.erase_pieces(piece_id)
        await self._js.erase(self._stream, message.subject, below=message.seq + 1)

    async def nameless(self, min_age_s: float) -> list[str]:
        """Pieces that belong to no object, and of which none came for so long: somebody died while
        he stored or deleted it. Raises BrokerError.
        """
        found = await self._piece_ids()  # before the names: then none is named in between
        names = self._js.proven_scan(self._stream, f"{self._names}>")
        named = {_piece_id(each) async for each in names}
        old = []
        for piece_id in found - named:
            last = await self._js.get_last(self._stream, self._pieces + piece_id)
            if last is not None and await self._age_s(last) >= min_age_s:
                old.append(piece_id)
        return old

    async def erase_pieces(self, piece_id: str) -> None:
        """Raises BrokerError."""
        await self._js.erase(self._stream, self._pieces + piece_id)

    async def _piece_ids(self) -> set[str]:
        found: set[str] = set()
        while True:
            info = await self._js.api(
                f"STREAM.INFO.{self._stream}",
                {"subjects_filter": f"{self._pieces}>", "offset": len(found)},
            )
            subjects = info["state"].get("subjects") or {}
            found |= {subject.removeprefix(self._pieces) for subject in subjects}
            if not subjects or len(found) >= int(info.get("total", 0)):
                return found

    async def _purge(self, subject: str, last_seq: int | None = None) -> None:
        below = None if last_seq is None else last_seq + 1
        await self._js.purge(self._stream, subject, below=below)

    async def _entry(self, message: StoredMessage) -> ObjectEntry:
        name = message.subject.removeprefix(self._names)
        try:
            name = base64.urlsafe_b64decode(name).decode()
        except (binascii.Error, UnicodeDecodeError):
            name = ""  # nobody of ours has stored it
        is_confirmed = _info(message).get("description") == _IN_USE
        age_s = await self._age_s(message)
        return ObjectEntry(name, _piece_id(message), message.seq, age_s, is_confirmed)

    async def _age_s(self, message: StoredMessage) -> float:
        clock = await self._js.clock(self._stream, _READING_S)
        return clock.age_s(message.time)

    def _subject(self, name: str) -> str:
        return self._names + base64.urlsafe_b64encode(name.encode()).decode()

    async def _store(self) -> ObjectStore:
        return await self._js.context().object_store(self._bucket)


def _info(message: StoredMessage) -> dict[str, Any]:
    try:
        return msgspec.json.decode(message.data, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _is_deleted(message: StoredMessage) -> bool:
    """Whether it was deleted by a version that left a word behind."""
    return _info(message).get("deleted") is True


def _piece_id(message: StoredMessage) -> str:
    """ "" for what no object store has made: what else enters a subject, nobody can tell."""
    piece_id = _info(message).get("nuid")
    return piece_id if isinstance(piece_id, str) and piece_id.isalnum() else ""
