"""What the suite says of bills that are missing, come twice, or say what the log does not."""

from __future__ import annotations

import time

import pytest

from bench.chaos import bill_check
from bench.chaos.bill_check import check_bills
from shared.cluster import open_cluster
from shared.config import ClusterConfig
from shared.protocol.bills import Bill, BillBatch, encode_bills
from shared.protocol.codec import encode
from shared.protocol.finish import FinishReason
from shared.protocol.log_records import End
from tests.nats_server import NatsServer

RIDS = tuple(str(number) * 32 for number in range(4))


@pytest.mark.integration
async def test_what_is_wrong_with_bills_is_seen(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bill_check, "_WITHIN_S", 0.1)
    config = ClusterConfig(nats_url=nats_server.url, num_partitions=1, bills_ttl_s=86_400.0)
    async with open_cluster(config, "test") as cluster:
        for rid in RIDS:
            end = encode(End(0, FinishReason.CANCEL, "f"))
            await cluster.js.publish(cluster.subjects.ownership(rid), end)

        async def store(first: int, *bills: tuple[str, int]) -> None:
            made = [
                Bill(rid, rid, time.time(), FinishReason.CANCEL, num_output_tokens=num, place=1)
                for rid, num in bills
            ]
            batch = encode_bills(BillBatch(2, 0, first, made))
            await cluster.js.publish(cluster.subjects.bills(0), batch)

        await store(0, (RIDS[0], 0), (RIDS[1], 0), (RIDS[1], 0), (RIDS[2], 7))
        assert [str(each) for each in await check_bills(cluster)] == [
            f"duplicated: 2 bills of {RIDS[1]}",
            f"lost: no bill of {RIDS[3]}",
            f"wrong: 7 tokens of {RIDS[2]} on its bill, 0 made",
        ]
        await cluster.js.purge(cluster.subjects.bills_stream, cluster.subjects.bills("*"))
        await store(0, *((rid, 0) for rid in RIDS))
        assert await check_bills(cluster) == []
