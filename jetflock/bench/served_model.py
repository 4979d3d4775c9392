"""The model under load, as the server tells of it."""

from __future__ import annotations

from dataclasses import dataclass

from jetflock.bench.connection_pool import ConnectionPool
from jetflock.bench.json_call import CallFailed, json_call
from jetflock.bench.target import Target
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Its name, and how long prompt and output together may be, where that is told."""

    name: str
    max_len: int | None = None

    @classmethod
    async def find(cls, pool: ConnectionPool, target: Target, name: str | None) -> ServedModel:
        """`name`, or the first of the server's models. Raises ConfigError or CallFailed."""
        try:
            listed = (await json_call(pool, target, "/v1/models"))["data"]
            models = [cls(str(each["id"]), each.get("max_model_len")) for each in listed]
        except (CallFailed, KeyError, TypeError, AttributeError) as exc:
            if name is not None and not (isinstance(exc, CallFailed) and exc.status == 0):
                return cls(name)  # not every server lists its models
            if isinstance(exc, CallFailed):
                raise
            raise ConfigError("/v1/models is no list of models; name one by --model") from exc
        if name is None and not models:
            raise ConfigError("the server lists no model; name one by --model")
        for model in models:
            if name in (None, model.name):
                return model
        assert name is not None
        return cls(name)
