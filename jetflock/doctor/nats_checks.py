"""NATS as the roles find it: server, JetStream, streams, consumers, who lives, clocks."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

from nats.aio.client import Client

from jetflock.doctor.finding import Finding, fail, ok, warn
from shared.admin.stream_changes import takes_rollups
from shared.broker.jetstream import JetStream
from shared.broker.kv_bucket import KvBucket, readable
from shared.broker.stream_info import servers_behind
from shared.catalog.model_status import ModelStatus, PoolHeartbeats, Standing
from shared.config import ClusterConfig
from shared.errors import BrokerError, ConfigError, IncarnationMismatch, ProtocolError
from shared.liveness.presence import is_absent
from shared.nats_client.connection import connect, round_trip
from shared.protocol.codec import decode
from shared.protocol.model_cards import ModelCard
from shared.protocol.request import PROTOCOL_VERSION
from shared.protocol.role_cards import Incarnation, RoleCard, WorkerCard
from shared.service.feature_level import FeatureLevel
from shared.storage.byte_budget import ByteBudget, in_units
from shared.storage.stream_room import usage_of
from shared.storage.streams import HEARTBEAT_TTL_S, check_stream, stream_configs
from shared.subjects import LANES, LEVEL_KEY, Subjects, new_incarnation
from shared.telemetry.log import setup_command_logging

_MIN_VERSION = (2, 11)  # direct gets in batches
_NUM_ROUND_TRIPS = 5
_SLOW_S = 0.05
_FULL = 0.8
_MAX_SKEW_S = 1.0
_NAME = "jetflock-doctor"


async def nats_findings(config: ClusterConfig) -> AsyncIterator[Finding]:
    """Looks, and changes nothing."""
    setup_command_logging(_NAME)
    try:
        nc = await connect(config, _NAME)
    except ConfigError as exc:
        told = str(exc).rpartition("; check ")[0] or str(exc)
        remedy = "start nats-server -js, or check --nats-url, the credentials and the network"
        yield fail("NATS", told, remedy)
        return
    try:
        async for finding in _Nats(config, nc).findings():
            yield finding
    finally:
        await nc.close()


class _Nats:
    """One connection, looked at from the server up to what lives on it."""

    def __init__(self, config: ClusterConfig, nc: Client) -> None:
        self._config = config
        self._nc = nc
        self._js = JetStream(nc, domain=config.nats_js_domain)
        self._subjects = Subjects(config.prefix, js_domain=config.nats_js_domain)
        self._infos: dict[str, dict[str, Any]] = {}  # of the streams that are there

    async def findings(self) -> AsyncIterator[Finding]:
        yield self._server()
        yield await self._round_trips()
        try:
            yield self._store(await self._js.api("INFO"))
        except BrokerError as exc:
            yield fail("JetStream", f"does not answer: {exc}", "start nats-server with -js")
            return
        try:
            async for finding in self._streams():
                yield finding
        except BrokerError as exc:
            yield fail(
                "streams", f"cannot be looked at: {exc}", "check the rights of the NATS user"
            )

    def _server(self) -> Finding:
        info: dict[str, Any] = self._nc._server_info
        version, cluster = info.get("version", "0"), info.get("cluster")
        text = f"nats-server {version} at {self._config.nats_url}"
        if cluster:
            text += f", of cluster {cluster}"
        if tuple(map(int, version.partition("-")[0].split(".")[:2])) < _MIN_VERSION:
            return fail("NATS", text, "use nats-server 2.11 or newer; tests use 2.15")
        return ok("NATS", text)

    async def _round_trips(self) -> Finding:
        times = []
        for _ in range(_NUM_ROUND_TRIPS):
            started = time.perf_counter()
            if not await round_trip(self._nc):
                remedy = "check the server's load and the network"
                return fail("round trip", "a message to ourselves does not come back", remedy)
            times.append(time.perf_counter() - started)
        median_s = statistics.median(times)
        text = f"{median_s * 1000:.1f} ms (median of {_NUM_ROUND_TRIPS})"
        if median_s > _SLOW_S:
            return warn("round trip", text, "put the roles nearer to NATS: each token waits for it")
        return ok("round trip", text)

    def _store(self, account: dict[str, Any]) -> Finding:
        """Looks at the account's figures; what the server itself may store it does not tell."""
        used, most = account["storage"], account["limits"]["max_storage"]
        wanted = self._config.replicas * ByteBudget.of(self._config).total
        reserved = in_units(account.get("reserved_storage", 0))
        text = f"{in_units(used)} stored, {reserved} reserved, {in_units(wanted)} wanted"
        if most <= 0:
            return ok("JetStream", text)
        text += f" of {in_units(most)}"
        if max(used / _FULL, wanted) > most:
            remedy = f"raise the account's max_file to {in_units(wanted)}, or lower --log-max-bytes"
            return warn("JetStream", text, remedy)
        return ok("JetStream", text)

    async def _streams(self) -> AsyncIterator[Finding]:
        yield await self._incarnation()
        if not self._infos:
            return
        wanted = stream_configs(self._config, self._subjects)
        bad = [finding for each in wanted if (finding := await self._stream(each))]
        bad += self._rollups(wanted)
        for finding in bad:
            yield finding
        if not bad:
            yield ok("streams", f"all {len(wanted)} are there, as they must be")
        yield await self._clocks()
        yield await self._deaths()
        async for finding in self._alive():
            yield finding

    async def _incarnation(self) -> Finding:
        names = self._subjects
        try:
            requests = await self._js.api(f"STREAM.INFO.{names.requests_stream}")
        except BrokerError:
            return warn(
                "streams",
                f"there are none with prefix {names.prefix!r}",
                "the first role makes them, or jetflock setup; else check --prefix",
            )
        self._infos[names.requests_stream] = requests
        entry = await KvBucket(self._js, names.meta_bucket).get("incarnation")
        try:
            made = None if entry is None else decode(Incarnation, entry.value)
        except ProtocolError as exc:
            return fail("protocol", f"its record cannot be read: {exc}", "use another --prefix")
        if made is None:
            return fail("protocol", "the streams do not say how they were made", "jetflock setup")
        self._subjects = dataclasses.replace(names, num_partitions=made.num_partitions)
        text = f"version {made.protocol_version}, {made.num_partitions} partitions"
        if made.protocol_version != PROTOCOL_VERSION:
            return fail(
                "protocol",
                f"{text}, this build speaks {PROTOCOL_VERSION}",
                "use roles of one version, or another --prefix",
            )
        level = FeatureLevel(self._js, names)
        try:
            text = f"{text}, feature level {(await level.read()).record.level}"
        except IncarnationMismatch as exc:
            remedy = f"delete the key {LEVEL_KEY} of the bucket {names.meta_bucket}"
            return fail("protocol", str(exc), f"{remedy}, and start all roles anew")
        if level.outdated.is_set():
            return fail(
                "protocol",
                f"{text}, this build knows {level.known}",
                "use the version of jetflock that the roles have",
            )
        if made.stream_created[names.requests_stream] != requests["created"]:
            return fail(
                "protocol",
                f"{names.requests_stream} was deleted and made again",
                f"remove all streams with prefix {names.prefix!r}, or use another --prefix",
            )
        return ok("protocol", text)

    async def _stream(self, wanted: dict[str, Any]) -> Finding | None:
        """None when nothing is wrong with it."""
        name = wanted["name"]
        try:
            info = await self._js.api(f"STREAM.INFO.{name}")
        except BrokerError as exc:
            return fail(name, f"cannot be read: {exc}", "jetflock setup makes what is missing")
        self._infos[name] = info
        try:
            check_stream(name, wanted, info["config"])
        except IncarnationMismatch as exc:
            text, _, remedy = str(exc).rpartition("; ")
            return fail(name, text, remedy)
        if wanted.get("max_bytes", -1) > 0 >= info["config"].get("max_bytes", -1):
            return warn(
                name,
                "has no limit of bytes: an earlier version made it",
                f"nats stream edit {name} --max-bytes {wanted['max_bytes']}",
            )
        return _health(name, info)

    def _rollups(self, wanted: list[dict[str, Any]]) -> list[Finding]:
        """One finding for all streams that still take them."""
        names = [
            each["name"]
            for each in wanted
            if (info := self._infos.get(each["name"])) and takes_rollups(info["config"], each)
        ]
        if not names:
            return []
        text = f"who may write to {', '.join(names)} may remove all that is in it"
        return [warn("roll-ups", text, f"jetflock setup --prefix {self._subjects.prefix}")]

    async def _clocks(self) -> Finding:
        """Ours against the server's: between the sending of the question and its answer."""
        before = time.time()
        there = (await self._js.clock(self._subjects.requests_stream)).leader_now
        after = time.time()
        here = datetime.datetime.fromtimestamp((before + after) / 2, datetime.UTC)
        skew_s = (here - there).total_seconds()
        text = f"this machine's differs from NATS's by {skew_s * 1000:+.0f} ms"
        if abs(skew_s) > _MAX_SKEW_S + after - before:
            return warn(
                "clocks",
                text,
                "run NTP on both: logs and what expires after days go by the clock",
            )
        return ok("clocks", text)

    async def _deaths(self) -> Finding:
        """Whether the server would tell who is gone: by nobody's hearing a question to it."""
        area = "deaths"
        if await is_absent(self._nc, self._subjects, new_incarnation("nobody")):
            return ok(area, "NATS tells at once who is gone")
        return warn(
            area,
            f"somebody listens on {self._subjects.presence('>')}, or on all subjects: a process "
            f"that dies is missed only when its heartbeat expires, after {HEARTBEAT_TTL_S:g} s",
            "end what listens there (nats sub '>'), or take that right away: jetflock nats-users",
        )

    async def _alive(self) -> AsyncIterator[Finding]:
        names = self._subjects
        roles = readable(RoleCard, await KvBucket(self._js, names.roles_bucket).entries())
        workers = readable(WorkerCard, await KvBucket(self._js, names.workers_bucket).entries())
        for role in ("frontend", "detok"):
            num = sum(card.role == role for card in roles)
            if num:
                yield ok(role, f"{num} running")
            else:
                yield warn(role, "none is running", f"start one: jetflock {role}")
        heartbeats = PoolHeartbeats.of(
            await KvBucket(self._js, names.workers_bucket).entries(),
            await KvBucket(self._js, names.roles_bucket).entries(),
        )
        for card in readable(ModelCard, await KvBucket(self._js, names.models_bucket).entries()):
            own = [each for each in workers if each.pool == card.pool]
            yield self._workers_of(card, own, heartbeats.standing(card))
            yield await self._consumers(card)

    def _workers_of(
        self, card: ModelCard, workers: list[WorkerCard], standing: Standing
    ) -> Finding:
        area = f"workers of {card.name}"
        states = sorted({worker.state.value for worker in workers})
        if standing.failure:
            return warn(area, f"they die: {standing.failure}", "see their log; they are tried on")
        if not workers and standing.status is ModelStatus.IDLE:
            return ok(area, "none is running; one is started for requests, or expected")
        if not workers and not card.is_announced:
            return ok(area, "none is running: the model was withdrawn")
        if not workers:
            remedy = f"start one: jetflock worker MODEL; or jetflock models forget {card.name}"
            return warn(area, "none is running", remedy)
        remarks = sorted({worker.remark for worker in workers if worker.remark})
        return ok(area, "; ".join([f"{len(workers)}, {', '.join(states)}", *remarks]))

    async def _consumers(self, card: ModelCard) -> Finding:
        stream, area = self._subjects.requests_stream, f"queues of {card.name}"
        for lane in LANES:
            name = self._subjects.consumer(card.pool, lane.token)
            try:
                await self._js.api(f"CONSUMER.INFO.{stream}.{name}")
            except BrokerError as exc:
                return fail(area, f"consumer {name}: {exc}", "restart a worker, or jetflock setup")
        return ok(area, f"{len(LANES)} consumers")


def _health(name: str, info: dict[str, Any]) -> Finding | None:
    """The health of a stream that is configured as it must be."""
    usage, most = usage_of(info), info["config"].get("max_bytes", -1)
    if usage > _FULL and info["config"].get("discard") == "new":
        text = f"is {usage:.0%} full"
        if most > 0:
            text += f": {in_units(info['state']['bytes'])} of {in_units(most)}"
        remedy = "what would fill it is refused, engines may pause: raise its limit (operating.md)"
        return warn(name, text, remedy)
    cluster = info.get("cluster") or {}
    if cluster.get("name") and not cluster.get("leader"):
        return fail(name, "has no leader", "start the other nats-servers of the cluster")
    if behind := servers_behind(info):
        text = f"replicas are away or behind: {', '.join(behind)}"
        return warn(name, text, "look after these nats-servers: one more loss may stop the queue")
    return None
