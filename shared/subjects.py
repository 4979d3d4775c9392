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
_PROCESS_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
LEVEL_KEY = "level"  # in the bucket `meta`: the feature level in force
MOVED_TO_KEY = "moved_to"  # there: to which prefix the service moves
MOVED_FROM_KEY = "moved_from"  # there: from which prefix it came, whose streams are still read
_DETACHED = "detached"  # in the place of a frontend: none waits for the request
_JS_DOMAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_rid() -> str:
    """A request id: 32 hex digits that nobody can guess."""
    return secrets.token_hex(16)


def choice_rid(group_id: str, choice_idx: int) -> str:
    """The rid of one of n choices. The first one's is the group id: who has it finds them all."""
    if choice_idx == 0:
        return group_id
    text = f"{group_id}.{choice_idx}".encode()
    return hashlib.blake2b(text, digest_size=16, person=b"jetflock-choice").hexdigest()


def requeued_rid(rid: str) -> str:
    """The rid under which a dead request is queued again: the same whoever does it, so that queue
    and ownership log know it.
    """
    return hashlib.blake2b(rid.encode(), digest_size=16, person=b"jetflock-requeue").hexdigest()


def is_sampled(group_id: str, share: float) -> bool:
    """Whether a request is one of this share of all. Whoever asks with the same share chooses the
    same ones, and with a greater one those and more.
    """
    digest = hashlib.blake2b(group_id.encode(), digest_size=8, person=b"jetflock-sample").digest()
    return int.from_bytes(digest) < share * 2**64


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


def api_prefix(js_domain: str | None) -> str:
    """What the subjects of JetStream's API begin with: of the nearest one, or of a domain."""
    return "$JS.API." if js_domain is None else f"$JS.{js_domain}.API."


def written_subject(subject: str, js_domain: str | None) -> str:
    """Where to publish what is to be stored under `subject`.

    A leaf node lets nothing of `$KV.>` through, but by way of the API of a domain.
    """
    if js_domain is None or not subject.startswith("$KV."):
        return subject
    return api_prefix(js_domain) + subject


class Lane(NamedTuple):
    """A part of a class's queue. The fewer requests a tenant has, the lower is theirs."""

    job_class: str
    level: int = 0  # below NUM_LANES

    @property
    def token(self) -> str:
        """Its name in subjects and consumer names: the lowest lane bears the name of its class."""
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
    js_domain: str | None = None  # of the JetStream that holds the streams

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.prefix) is None:
            raise ConfigError(f"prefix {self.prefix!r} must match {_NAME.pattern}")
        if not 1 <= self.num_partitions <= 1024:
            raise ConfigError(f"num_partitions is {self.num_partitions}, must be 1 to 1024")
        if self.js_domain is not None and _JS_DOMAIN.fullmatch(self.js_domain) is None:
            raise ConfigError(
                f"nats_js_domain is {self.js_domain!r}, must match {_JS_DOMAIN.pattern}"
            )

    def partition(self, rid: str) -> int:
        """The partition of the token log that holds this request."""
        return int(rid[:8], 16) % self.num_partitions

    # JetStream

    @property
    def api_prefix(self) -> str:
        """What the subjects of JetStream's API begin with."""
        return api_prefix(self.js_domain)

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

    @property
    def bills_stream(self) -> str:
        return f"{self.prefix}_BILLS"

    # Subjects in streams

    def request(self, pool: str, lane: str, frontend_id: str, rid: str) -> str:
        """The subject of one request, in the lane with this token; that of a class is its lowest.

        Whose death orphans it stands before its id; "" for a detached one. So a request is found
        by its id, and those of a frontend by theirs, whatever else is in the queue.
        """
        owner = frontend_id or _DETACHED
        if owner != "*" and _PROCESS_ID.fullmatch(owner) is None:
            raise ValueError(f"frontend id {owner[:80]!r} is no token of a subject")
        return f"{self.lane(pool, lane)}.{owner}.{rid}"

    def lane(self, pool: str, lane: str) -> str:
        """What the subjects of all requests of a lane begin with."""
        return f"{self.prefix}.req.{pool}.{lane}"

    def requests(self, pool: str, lane: str) -> str:
        """All requests of a lane."""
        return self.request(pool, lane, "*", "*")

    def requests_of_frontend(self, frontend_id: str) -> str:
        return self.request("*", "*", frontend_id, "*")

    def request_by_rid(self, rid: str) -> str:
        """One request, wherever it is."""
        return self.request("*", "*", "*", rid)

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

    def bills(self, partition: int | str) -> str:
        """Bills of the requests of a partition that are over, in the order of their ends."""
        return f"{self.prefix}.bill.{partition}"

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
        """The consumer of the lane with this token; that of a class is its lowest."""
        return f"{pool}_{lane}"

    def consumers(self, pool: str) -> list[str]:
        """All consumers of a pool: what waits and runs is the sum over them."""
        return [self.consumer(pool, lane.token) for lane in LANES]

    # Core NATS

    def inbox_prefix(self, role: str) -> str:
        """First token of where processes of a role hear the answers to their requests."""
        return f"_INBOX_{self.prefix}_{role}"

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

    def pages_key(self, pool: str, worker: str) -> str:
        """Request/reply: by which key this worker sends pages to others."""
        return f"{self.prefix}.ctl.{pool}.pages.{worker}"

    def nodes(self, pool: str, group: str) -> str:
        """Request/reply: the first host of a model that several share answers the others."""
        return f"{self.prefix}.ctl.{pool}.nodes.{group}"

    @property
    def tenants(self) -> str:
        """What frontends tell each other of their tenants."""
        return f"{self.prefix}.ctl.tenants"

    @property
    def costs(self) -> str:
        """What requests have cost their tenants: detokenizers tell all frontends."""
        return f"{self.prefix}.ctl.costs"

    @property
    def worker_died(self) -> str:
        """A supervisor says which worker incarnation it saw die; the payload is its id."""
        return f"{self.prefix}.ctl.worker_died"

    def presence(self, incarnation: str) -> str:
        """Where a process listens as long as it is there, and answers nothing."""
        return f"{self.prefix}.here.{incarnation}"

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
    def owners_bucket(self) -> str:
        """It holds the owners of partitions, and their leases."""
        return f"{self.prefix}_owners"

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
    def secrets_bucket(self) -> str:
        """It holds secrets of the deployment, for frontends alone."""
        return f"{self.prefix}_secrets"

    @property
    def usage_bucket(self) -> str:
        """Sums of bills, by day and a part of the tenants."""
        return f"{self.prefix}_usage"

    @property
    def files_bucket(self) -> str:
        """Uploaded files and batch outputs: records in KV, contents in an object store."""
        return f"{self.prefix}_files"

    @property
    def batches_bucket(self) -> str:
        return f"{self.prefix}_batches"

    @property
    def key_buckets(self) -> tuple[str, ...]:
        """The buckets that grow with what clients do: the others have an entry for each process,
        model or partition.
        """
        return (
            self.attached_bucket,
            self.idempotency_bucket,
            self.files_bucket,
            self.batches_bucket,
        )

    @property
    def objects_bucket(self) -> str:
        return f"{self.prefix}_objects"


def rid_of(subject: str) -> str:
    """The last token of a request's, an ownership or a done subject."""
    return subject.rsplit(".", 1)[1]


def subject_kind(subject: str) -> str:
    """The token behind the prefix, as `own` or `tok`: what a message on it is about."""
    return subject.split(".", 2)[1]
