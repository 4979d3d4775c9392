"""Each subject, stream, bucket and consumer name, spelled once."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import NamedTuple

from shared.errors import ConfigError

JOB_CLASSES = ("interactive", "batch")  # in the order in which they are pulled
NUM_LANES = 3  # of each class

_RID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def new_rid() -> str:
    """A request id: 32 hex digits that nobody can guess."""
    return secrets.token_hex(16)


def choice_rid(group_id: str, choice_idx: int, num_choices: int) -> str:
    """The rid of one of n choices: the group id itself when there is only one."""
    if num_choices == 1:
        return group_id
    text = f"{group_id}.{choice_idx}".encode()
    return hashlib.blake2b(text, digest_size=16, person=b"jetflock-choice").hexdigest()


def is_rid(text: str) -> bool:
    """Whether a client's text may be used as a request id."""
    return _RID.fullmatch(text) is not None


def new_incarnation(role: str) -> str:
    """Id of one process: name and random, never reused, fit for a subject."""
    return f"{role}-{secrets.token_hex(6)}"


def pool_slug(model_name: str) -> str:
    """The subject token of a model: readable, and distinct for distinct names.

    The Helm chart computes it too, with what its templates have: hence this hash.
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "-", model_name).lower().strip("-")[:40] or "model"
    return f"{readable}-{hashlib.sha256(model_name.encode()).hexdigest()[:8]}"


class Lane(NamedTuple):
    """A part of a class's queue. The fewer requests a tenant has, the lower is theirs."""

    job_class: str
    level: int = 0  # below NUM_LANES

    @property
    def token(self) -> str:
        """In subjects and consumer names: the lowest lane bears the name of its class."""
        return f"{self.job_class}-{self.level}" if self.level else self.job_class

    @classmethod
    def parse(cls, token: str) -> Lane:
        job_class, _, level = token.partition("-")
        return cls(job_class, int(level or 0))


LANES = tuple(Lane(job_class, level) for job_class in JOB_CLASSES for level in range(NUM_LANES))


@dataclass(frozen=True, slots=True)
class Subjects:
    """All names under one prefix, for a fixed number of partitions."""

    prefix: str = "jf"
    num_partitions: int = 4

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.prefix) is None:
            raise ConfigError(f"prefix {self.prefix!r} must match {_NAME.pattern}")
        if not 1 <= self.num_partitions <= 1024:
            raise ConfigError(f"num_partitions is {self.num_partitions}, must be 1 to 1024")

    def partition(self, rid: str) -> int:
        """The partition of the token log that holds this request."""
        return int(rid[:8], 16) % self.num_partitions

    # Streams

    @property
    def requests_stream(self) -> str:
        return f"{self.prefix}_REQUESTS"

    @property
    def tokens_stream(self) -> str:
        return f"{self.prefix}_TOKENS"

    @property
    def results_stream(self) -> str:
        return f"{self.prefix}_RESULTS"

    @property
    def dead_stream(self) -> str:
        return f"{self.prefix}_DEAD"

    @property
    def events_stream(self) -> str:
        return f"{self.prefix}_EVENTS"

    @property
    def batch_stream(self) -> str:
        return f"{self.prefix}_BATCH"

    @property
    def responses_stream(self) -> str:
        return f"{self.prefix}_RESPONSES"

    # Subjects in streams

    def request(self, pool: str, lane: str) -> str:
        """Of the lane with this token; that of a class is its lowest."""
        return f"{self.prefix}.req.{pool}.{lane}"

    def ownership(self, rid: str) -> str:
        return f"{self.prefix}.own.{self.partition(rid)}.{rid}"

    def ownership_of_partition(self, partition: int) -> str:
        return f"{self.prefix}.own.{partition}.*"

    def tokens(self, partition: int, worker: str) -> str:
        return f"{self.prefix}.tok.{partition}.{worker}"

    def tokens_of_partition(self, partition: int) -> str:
        return f"{self.prefix}.tok.{partition}.*"

    def done(self, rid: str) -> str:
        return f"{self.prefix}.done.{rid}"

    def dead(self, pool: str) -> str:
        return f"{self.prefix}.dead.{pool}"

    def event(self, pool: str) -> str:
        """What happens to a pool: workers come and go, and why."""
        return f"{self.prefix}.event.{pool}"

    def batch_line(self, batch_id: str, line_idx: int | str) -> str:
        """What became of one line of a batch."""
        return f"{self.prefix}.batch.{batch_id}.{line_idx}"

    def batch_lines(self, batch_id: str) -> str:
        return f"{self.prefix}.batch.{batch_id}.*"

    def response(self, rid: str) -> str:
        """What was asked and, behind it, the result."""
        return f"{self.prefix}.resp.{rid}"

    # Consumers of REQUESTS

    def consumer(self, pool: str, lane: str) -> str:
        """Of the lane with this token; that of a class is its lowest."""
        return f"{pool}_{lane}"

    def consumers(self, pool: str) -> list[str]:
        """All consumers of a pool: what waits and runs is the sum over them."""
        return [self.consumer(pool, lane.token) for lane in LANES]

    # Core NATS

    def reply(self, frontend_id: str) -> str:
        """Where one frontend process hears the text of its own requests."""
        return f"{self.prefix}.out.{frontend_id}"

    @property
    def detached_reply(self) -> str:
        """The reply subject of a request that no frontend waits for: nobody listens here."""
        return f"{self.prefix}.out.detached"

    def control(self, pool: str) -> str:
        """Notices to the workers of a pool: cancel, fenced."""
        return f"{self.prefix}.ctl.{pool}.notice"

    def admin(self, pool: str) -> str:
        """Request/reply: what an operator tells all workers of a pool; each one answers."""
        return f"{self.prefix}.adm.{pool}"

    def admin_worker(self, pool: str, worker: str) -> str:
        """The same for one worker."""
        return f"{self.prefix}.adm.{pool}.{worker}"

    def prefixes(self, pool: str) -> str:
        """What the workers of a pool tell each other of the prefixes they have."""
        return f"{self.prefix}.ctl.{pool}.prefixes"

    def offer(self, pool: str, worker: str) -> str:
        """Request/reply: a request is offered to the worker that has its prefix."""
        return f"{self.prefix}.ctl.{pool}.offer.{worker}"

    @property
    def tenants(self) -> str:
        """What frontends tell each other of their tenants."""
        return f"{self.prefix}.ctl.tenants"

    @property
    def worker_died(self) -> str:
        """A supervisor says which worker incarnation it saw die; the payload is its id."""
        return f"{self.prefix}.ctl.worker_died"

    def replay(self, partition: int) -> str:
        """Request/reply: whoever owns the partition answers."""
        return f"{self.prefix}.rpc.detok.{partition}"

    # Buckets

    @property
    def workers_bucket(self) -> str:
        return f"{self.prefix}_workers"

    @property
    def roles_bucket(self) -> str:
        return f"{self.prefix}_roles"

    @property
    def models_bucket(self) -> str:
        return f"{self.prefix}_models"

    @property
    def leases_bucket(self) -> str:
        return f"{self.prefix}_leases"

    @property
    def floors_bucket(self) -> str:
        return f"{self.prefix}_floors"

    @property
    def attached_bucket(self) -> str:
        return f"{self.prefix}_attached"

    @property
    def idempotency_bucket(self) -> str:
        return f"{self.prefix}_idempotency"

    @property
    def turns_bucket(self) -> str:
        """Whose turn it is to change the number of a pool's workers."""
        return f"{self.prefix}_turns"

    @property
    def meta_bucket(self) -> str:
        return f"{self.prefix}_meta"

    @property
    def files_bucket(self) -> str:
        """Uploaded files and batch outputs: records in KV, contents in an object store."""
        return f"{self.prefix}_files"

    @property
    def batches_bucket(self) -> str:
        return f"{self.prefix}_batches"

    @property
    def objects_bucket(self) -> str:
        return f"{self.prefix}_objects"


def rid_of(subject: str) -> str:
    """The last token of an ownership or done subject."""
    return subject.rsplit(".", 1)[1]


def subject_kind(subject: str) -> str:
    """The token behind the prefix, as `own` or `tok`: what a message on it is about."""
    return subject.split(".", 2)[1]
