"""`jetflock usage export`: each bill once in the file, also after an export that died."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from jetflock.commands import usage_export
from jetflock.commands.usage_export import CsvFile, ExportConfig
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.errors import ConfigError
from shared.protocol.bills import Bill, BillBatch, encode_bills
from shared.protocol.finish import FinishReason
from tests.nats_server import NatsServer


async def export(nats_url: str, out: Path) -> None:
    config = ExportConfig(nats_url=nats_url, out=out, consumer="accounts")
    await usage_export._export(config, config.sink())


@pytest.mark.integration
async def test_an_export_goes_on_where_the_last_one_stopped(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bills.csv"
    config = ClusterConfig(nats_url=nats_server.url, bills_ttl_s=86_400.0)
    async with open_cluster(config, "test") as cluster:

        async def store(first: int, *tenants: str) -> None:
            bills = [
                Bill(name, name, 1.5, FinishReason.STOP, tenant=name, metadata={"job": 'a,"b"'})
                for name in tenants
            ]
            payload = encode_bills(BillBatch(2, 0, first, bills))
            await cluster.js.publish(cluster.subjects.bills(0), payload)

        await store(0, "alice", "bob")
        await export(nats_server.url, out)
        await export(nats_server.url, out)
        await store(2, "carol")
        # An export that dies when its file is written, and its place has not moved:
        with monkeypatch.context() as patch:
            patch.setattr(CsvFile, "close", _die)
            with pytest.raises(KeyboardInterrupt):
                await export(nats_server.url, out)
        await store(3, "dave")
        await cluster.js.api(
            f"CONSUMER.DURABLE.CREATE.{cluster.subjects.bills_stream}.again",
            {
                "stream_name": cluster.subjects.bills_stream,
                "config": {"durable_name": "again", "ack_policy": "all"},
            },
        )
        again = ExportConfig(nats_url=nats_server.url, out=out, consumer="again")
        await usage_export._export(again, again.sink())
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    assert [(row["number"], row["tenant"]) for row in rows] == [
        ("0", "alice"),
        ("1", "bob"),
        ("2", "carol"),
        ("3", "dave"),
    ]
    assert {row["metadata"] for row in rows} == {'{"job":"a,\\"b\\""}'}


def _die(_: CsvFile) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ExportConfig(consumer="a b"), "consumer is 'a b'"),
        (ExportConfig(out=Path("bills.txt")), "out is bills.txt, must end with"),
        (ExportConfig(out=Path("bills.parquet")), "pip install pyarrow"),
    ],
)
def test_what_cannot_be_is_refused(config: ExportConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.sink()


def test_a_file_of_another_kind_is_not_appended_to(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("name,value\n")
    with pytest.raises(ConfigError, match="has other columns"):
        CsvFile(other)
