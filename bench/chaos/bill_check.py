"""Whether each request that is over has one bill, which says what the log says, and all of them
what is told as used.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator

from bench.chaos.violation import Violation, ViolationKind
from detok.full_fold import fold_from_log
from shared.cluster import Cluster
from shared.errors import BrokerError, ProtocolError
from shared.protocol.bills import Bill, decode_bills
from shared.protocol.codec import decode_ownership
from shared.service.usage_sums import UsageSums
from shared.subjects import rid_of

_WITHIN_S = 30.0  # behind the last end, for who takes over from a dead detokenizer
_MAX_FOLDED = 200  # requests whose whole log is read


async def check_bills(cluster: Cluster) -> list[Violation]:
    """Once nothing is queued. What waits to be billed has some time."""
    found = [Violation(ViolationKind.LOST, "no bills could be read")]
    deadline = time.monotonic() + _WITHIN_S
    while found and time.monotonic() < deadline:
        with contextlib.suppress(BrokerError):
            found = [each async for each in _differences(cluster)]
        await asyncio.sleep(0.5)
    return found[:10]


async def _differences(cluster: Cluster) -> AsyncIterator[Violation]:
    """Raises BrokerError."""
    subjects, js = cluster.subjects, cluster.js
    bills: list[Bill] = []
    async for message in js.proven_scan(subjects.bills_stream, subjects.bills("*")):
        bills += decode_bills(message.data).bills
    owned = f"{subjects.prefix}.own.*.*"
    rids: set[str] = set()
    async for message in js.proven_scan(subjects.tokens_stream, owned):
        with contextlib.suppress(ProtocolError):  # garbage on a subject is no request
            decode_ownership(message.data)
            rids.add(rid_of(message.subject))
    times = Counter(bill.rid for bill in bills)
    for rid, num in times.items():
        if num > 1:
            yield Violation(ViolationKind.DUPLICATED, f"{num} bills of {rid}")
    for rid in sorted(rids - times.keys()):
        yield Violation(ViolationKind.LOST, f"no bill of {rid}")
    for bill in bills[:: len(bills) // _MAX_FOLDED + 1]:
        fold = await fold_from_log(cluster, bill.rid)
        if fold is None or fold.finish is None:
            continue  # its log is too old
        run = fold.finish.run
        num_given = 0 if run is None else run.num_given  # to a fork
        num_tokens = len(fold.tokens) - num_given + fold.finish.num_beam_tokens
        if bill.num_output_tokens != num_tokens:
            detail = f"{bill.num_output_tokens} tokens of {bill.rid} on its bill, {num_tokens} made"
            yield Violation(ViolationKind.WRONG, detail)
    sums = UsageSums(js, subjects)
    await sums.catch_up()
    told = sum(row.num_output_tokens for part in sums.parts(None, "") for _, row in part)
    if told != sum(bill.num_output_tokens for bill in bills):
        yield Violation(ViolationKind.WRONG, f"{told} tokens used, and bills say otherwise")
