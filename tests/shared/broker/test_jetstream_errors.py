"""What the server's error numbers mean to a caller: who may wait, and who must read back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from shared.broker.jetstream import JetStream
from shared.errors import BrokerError, BrokerUnavailable, CasConflict, LimitReached


class Answering(Client):
    """A connection on which every request gets one answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__()
        self._answer = msgspec.json.encode({"error": error})

    async def request(self, *_: Any, **__: Any) -> Msg:
        return Msg(self, data=self._answer)


@pytest.mark.parametrize(
    ("code", "err_code", "description", "meaning"),
    [
        (400, 10071, "wrong last sequence: 7", CasConflict),
        (400, 10164, "wrong last sequence", CasConflict),
        (503, 10077, "maximum messages exceeded", LimitReached),
        (503, 10077, "maximum bytes exceeded", LimitReached),
        (503, 10077, "no space left on device", BrokerUnavailable),
        (503, 10008, "JetStream system temporarily unavailable", BrokerUnavailable),
        (500, 10118, "stream is offline", BrokerUnavailable),
        (500, 10119, "consumer is offline", BrokerUnavailable),
        (400, 10005, "no suitable peers for placement, peer offline", BrokerUnavailable),
        (400, 10005, "no suitable peers for placement, insufficient storage", BrokerError),
        (500, 10007, "JetStream cluster not assigned to this server", BrokerUnavailable),
        (500, 10009, "JetStream cluster can not handle request", BrokerUnavailable),
        (500, 10041, "raft: not leader", BrokerUnavailable),
        (500, 10052, "replicas > 1 not supported in non-clustered mode", BrokerError),
        (400, 10076, "stream name is missing", BrokerError),
    ],
)
async def test_errors_of_a_publish_and_of_the_api(
    code: int, err_code: int, description: str, meaning: type[BrokerError]
) -> None:
    js = JetStream(Answering({"code": code, "err_code": err_code, "description": description}))
    with pytest.raises(BrokerError) as told:
        await js.publish("jf.own.0.r", b"", expected_last=0)
    assert type(told.value) is meaning
    assert told.value.err_code == err_code
    with pytest.raises(BrokerError) as told:
        await js.api("STREAM.INFO.jf_TOKENS")
    assert type(told.value) is meaning
