"""`jetflock usage export`: the bills themselves, each once, as CSV or Parquet."""

# No `from __future__ import annotations` here: cyclopts reads the types of the fields.

import asyncio
import csv
import importlib
import io
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from nats.errors import Error as NatsError

from jetflock.running.existing_cluster import existing_cluster
from jetflock.running.running_service import ServiceConfig
from shared.broker.jetstream import JetStream
from shared.config import FLAT
from shared.errors import BrokerError, ConfigError, ProtocolError
from shared.nats_client.connection_end import end_subscription
from shared.protocol.bills import BILL_FIELDS, bill_cells, decode_bills
from shared.storage.streams import ERR_STREAM_NOT_FOUND
from shared.subjects import Subjects

_NAME = "jetflock usage export"
_HEAD = ("partition", "number", *BILL_FIELDS)
_CONSUMER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TIMEOUT_S = 5.0
_CHUNK = 5000  # bills that are written at once

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ExportConfig(ServiceConfig):
    """Flags of `jetflock usage export`."""

    out: Path | None = None
    """A .csv, to which new bills are appended, or a .parquet that is not there yet; by default CSV
    to standard output."""
    consumer: str = ""
    """Go on where the last export with this name stopped: its place is kept in NATS, and moves when
    the bills are written. Without a name all bills are written."""

    def sink(self) -> "Sink":
        """Where the bills go. Raises ConfigError."""
        if self.consumer and _CONSUMER.fullmatch(self.consumer) is None:
            raise ConfigError(f"consumer is {self.consumer!r}, must match {_CONSUMER.pattern}")
        if self.out is None:
            return StandardOutput()
        match self.out.suffix:
            case ".csv":
                return CsvFile(self.out)
            case ".parquet":
                return ParquetFile(self.out)
        raise ConfigError(f"out is {self.out}, must end with .csv or .parquet")


class Sink(Protocol):
    """Takes rows; `is_safe` says whether those that were written stay, whatever comes."""

    @property
    def is_safe(self) -> bool: ...

    def write(self, rows: list[Row]) -> None: ...

    def close(self) -> None: ...


class StandardOutput:
    """CSV with a head."""

    is_safe: bool = True

    def __init__(self) -> None:
        sys.stdout.write(_csv_text([], with_head=True))

    def write(self, rows: list[Row]) -> None:
        sys.stdout.write(_csv_text(rows))

    def close(self) -> None:
        sys.stdout.flush()


class CsvFile:
    """Appends what is not there: an export may have died before its place was moved."""

    is_safe: bool = True

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when it is a file of another kind."""
        self._path = path
        self._known = _bills_in(path)

    def write(self, rows: list[Row]) -> None:
        new = [
            row for row in rows if (str(row["partition"]), str(row["number"])) not in self._known
        ]
        is_empty = not self._path.exists() or not self._path.stat().st_size
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(_csv_text(new, with_head=is_empty))
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        pass


class ParquetFile:
    """Is there when it is whole."""

    is_safe: bool = False

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        try:
            pyarrow: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as exc:
            raise ConfigError(f"{path}: Parquet needs pyarrow: pip install pyarrow") from exc
        if path.exists():
            raise ConfigError(f"{path} is there already: a Parquet file is written once")
        self._table_of = pyarrow.Table.from_pylist
        self._writer_of = parquet.ParquetWriter
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._writer: Any = None

    def write(self, rows: list[Row]) -> None:
        table = self._table_of(rows)
        if self._writer is None:
            self._writer = self._writer_of(self._part, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._part.replace(self._path)


def _csv_text(rows: list[Row], *, with_head: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _HEAD, lineterminator="\n")
    if with_head:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _bills_in(path: Path) -> set[tuple[str, str]]:
    """Partition and number of each. Raises ConfigError."""
    if not path.exists() or not path.stat().st_size:
        return set()
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != _HEAD:
            raise ConfigError(f"{path} has other columns than this export: give another file")
        return {(row["partition"], row["number"]) for row in reader}


class BillConsumer:
    """Reads the stream of bills to its end: by a durable consumer, whose place moves with `settle`,
    or from the first one on.
    """

    def __init__(self, js: JetStream, subjects: Subjects, name: str) -> None:
        self._js = js
        self._stream = subjects.bills_stream
        self._subjects = subjects.bills("*")
        self._api_prefix = subjects.api_prefix
        self._name = name
        self._ack_subject = ""  # of the last message that was read
        self._next_numbers: dict[int, int] = {}  # by partition
        self.num_missing = 0  # bills that the stream has lost for room or age

    async def read(self) -> AsyncIterator[list[Row]]:
        """The bills of each message. Raises BrokerError, ProtocolError or NatsError."""
        if not self._name:
            async for stored in self._js.direct_scan(self._stream, self._subjects):
                yield self._rows(stored.data)
            return
        await self._js.api(
            f"CONSUMER.DURABLE.CREATE.{self._stream}.{self._name}",
            {
                "stream_name": self._stream,
                "config": {
                    "durable_name": self._name,
                    "ack_policy": "all",
                    "deliver_policy": "all",
                    "ack_wait": int(60e9),
                    "max_ack_pending": -1,
                },
            },
        )
        subject = f"{self._api_prefix}CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        asked = json.dumps({"batch": 1, "no_wait": True}).encode()
        nc = self._js.nc
        inbox = nc.new_inbox()
        # What is delivered bears its own subject, by which the inbox of requests knows no answer.
        subscription = await nc.subscribe(inbox)
        try:
            while True:
                await nc.publish(subject, asked, reply=inbox)
                message = await subscription.next_msg(_TIMEOUT_S)
                if message.headers and "Status" in message.headers:
                    return
                self._ack_subject = message.reply
                yield self._rows(message.data)
        finally:
            await end_subscription(subscription)

    async def settle(self) -> None:
        """What was read needs not be read again. Raises NatsError."""
        if self._ack_subject:
            await self._js.nc.request(self._ack_subject, b"+ACK", timeout=_TIMEOUT_S)
            self._ack_subject = ""

    def _rows(self, data: bytes) -> list[Row]:
        batch = decode_bills(data)
        expected = self._next_numbers.get(batch.partition, batch.first)
        self.num_missing += max(0, batch.first - expected)
        self._next_numbers[batch.partition] = batch.first + len(batch.bills)
        return [
            {"partition": batch.partition, "number": batch.first + i, **bill_cells(bill)}
            for i, bill in enumerate(batch.bills)
        ]


def export_bills(config: Annotated[ExportConfig, FLAT] = ExportConfig()) -> None:
    """Write the bills, each in a line of its own.

    The first two columns, partition and number, name a bill: the numbers of a partition have no
    gap.
    """
    asyncio.run(_export(config, config.sink()))


async def _export(config: ExportConfig, sink: Sink) -> None:
    async with existing_cluster(config, _NAME) as cluster:
        consumer = BillConsumer(cluster.js, cluster.subjects, config.consumer)
        try:
            num_bills = await _write_all(consumer, sink)
        except BrokerError as exc:
            stream = cluster.subjects.bills_stream
            if exc.err_code == ERR_STREAM_NOT_FOUND:
                raise ConfigError(
                    f"there is no stream {stream}: make it with `jetflock setup --bills-ttl-s`"
                ) from exc
            raise ConfigError(f"{stream} cannot be read: {exc}") from exc
        except (NatsError, ProtocolError) as exc:
            raise ConfigError(f"the bills cannot be read: {exc!r}") from exc
    sys.stderr.write(f"{_NAME}: {num_bills} bills\n")
    if consumer.num_missing:
        sys.stderr.write(
            f"{_NAME}: {consumer.num_missing} bills were removed before they were read: raise "
            "--bills-max-bytes\n"
        )


async def _write_all(consumer: BillConsumer, sink: Sink) -> int:
    """How many there were."""
    num_bills = 0
    rows: list[Row] = []
    async for found in consumer.read():
        num_bills += len(found)
        rows += found
        if len(rows) >= _CHUNK:
            sink.write(rows)
            rows = []
            if sink.is_safe:
                await consumer.settle()
    if rows:
        sink.write(rows)
    sink.close()
    await consumer.settle()
    return num_bills
