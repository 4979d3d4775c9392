"""What each role may publish and hear: nothing that its code does not do.

Written with the names of `shared/subjects.py`, `*` in the place of what is not known before: pools,
request ids, process ids. So rights end at the role: a worker may write what any worker may.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.connection import inbox_prefix
from shared.subjects import Subjects

ADMIN, FRONTEND, WORKER, DETOK = "admin", "frontend", "worker", "detok"

_API = "$JS.API"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects with wildcards; everything else is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def permissions(subjects: Subjects, service: str, clients: Sequence[str]) -> dict[str, Permissions]:
    """Of every user. Each hears only its own inbox: nobody listens to answers to others."""
    prefix = subjects.prefix
    to_clients = [_inbox(client) for client in clients]
    users = {
        # Makes streams, consumers and model cards; `jetflock dead`, `jetflock admin`.
        ADMIN: Permissions((">",), (">",)),
        FRONTEND: _permissions(
            FRONTEND,
            publish=[
                subjects.request("*", "*"),
                _ownership(subjects),
                subjects.control("*"),
                subjects.tenants,
                f"{prefix}.rpc.detok.*",
                subjects.response("*"),
                _purge(subjects.responses_stream),
                *_reads(subjects.requests_stream, subjects.tokens_stream),
                *_reads(subjects.responses_stream),
                _scan(subjects.events_stream),
                *_reads(*_buckets(subjects.models_bucket, subjects.workers_bucket)),
                f"{_API}.CONSUMER.INFO.{subjects.requests_stream}.*",
                *_bucket_writes(
                    subjects.roles_bucket,
                    subjects.attached_bucket,
                    subjects.idempotency_bucket,
                    subjects.files_bucket,
                    subjects.batches_bucket,
                ),
                subjects.batch_line("*", "*"),
                *_reads(subjects.batch_stream),
                _purge(subjects.batch_stream),
                *_object_reads(subjects.objects_bucket, subjects.files_bucket),
                *_object_writes(subjects.objects_bucket, subjects.files_bucket),
                *to_clients,
            ],
            subscribe=[subjects.reply("*"), subjects.tenants, f"{service}.>", "$SRV.>"],
            subjects=subjects,
        ),
        WORKER: _permissions(
            WORKER,
            publish=[
                _ownership(subjects),
                f"{prefix}.tok.*.*",
                subjects.dead("*"),
                _scan(subjects.dead_stream),  # the oldest make room for it
                f"{_API}.STREAM.MSG.DELETE.{subjects.dead_stream}",
                subjects.event("*"),
                subjects.prefixes("*"),
                subjects.offer("*", "*"),
                f"{_API}.CONSUMER.MSG.NEXT.{subjects.requests_stream}.*",
                # Finds and removes what was acknowledged: an ack can do no less.
                *_acks(subjects.requests_stream),
                f"{_API}.STREAM.MSG.GET.{subjects.requests_stream}",
                f"{_API}.STREAM.MSG.DELETE.{subjects.requests_stream}",
                *_reads(subjects.tokens_stream, subjects.results_stream),
                *_reads(*_buckets(subjects.models_bucket)),
                *_ordered_reader(subjects.tokens_stream),
                *_bucket_writes(subjects.workers_bucket),
                f"{_API}.CONSUMER.INFO.{subjects.requests_stream}.*",
                *_object_reads(subjects.objects_bucket),
                *_object_writes(subjects.objects_bucket),
                _inbox(ADMIN),
            ],
            subscribe=[
                subjects.control("*"),
                subjects.prefixes("*"),
                subjects.offer("*", "*"),
                subjects.admin("*"),
                subjects.admin_worker("*", "*"),
            ],
            subjects=subjects,
        ),
        DETOK: _permissions(
            DETOK,
            publish=[
                subjects.done("*"),
                subjects.response("*"),
                subjects.reply("*"),
                subjects.control("*"),
                *_acks(subjects.requests_stream),  # gives back what a dead worker had
                *_reads(subjects.tokens_stream, subjects.results_stream),
                *_ordered_reader(subjects.tokens_stream),
                *_bucket_writes(
                    subjects.leases_bucket, subjects.floors_bucket, subjects.roles_bucket
                ),
                *_reads(*_buckets(subjects.workers_bucket)),
                _purge(f"KV_{subjects.workers_bucket}"),  # a write that changes nothing
                *_object_reads(subjects.objects_bucket),
                _inbox(FRONTEND),
            ],
            subscribe=[
                f"{prefix}.rpc.detok.*",
                subjects.worker_died,
                f"$KV.{subjects.leases_bucket}.*",
            ],
            subjects=subjects,
        ),
    }
    for client in clients:
        users[client] = Permissions((f"{service}.>",), (_inbox(client),))
    return users


def _permissions(
    user: str, publish: Iterable[str], subscribe: Iterable[str], subjects: Subjects
) -> Permissions:
    """With what every role does: look at the streams, hear its answers, ask itself."""
    own = _inbox(user)
    checks = [f"{_API}.STREAM.INFO.*", *_reads(*_buckets(subjects.meta_bucket))]
    return Permissions(tuple(dict.fromkeys([*publish, *checks, own])), (*subscribe, own))


def _inbox(user: str) -> str:
    return f"{inbox_prefix(user)}.>"


def _ownership(subjects: Subjects) -> str:
    return f"{subjects.prefix}.own.*.*"


def _buckets(*buckets: str) -> list[str]:
    return [f"KV_{bucket}" for bucket in buckets]


def _reads(*streams: str) -> list[str]:
    return [
        f"{_API}.{operation}.{stream}"
        for stream in streams
        for operation in ("STREAM.MSG.GET", "DIRECT.GET")
    ]


def _scan(stream: str) -> str:
    return f"{_API}.DIRECT.GET.{stream}"


def _purge(stream: str) -> str:
    return f"{_API}.STREAM.PURGE.{stream}"


def _bucket_writes(*buckets: str) -> list[str]:
    """Read, write, and delete, which purges."""
    return [
        subject
        for bucket in buckets
        for subject in (f"$KV.{bucket}.>", *_reads(f"KV_{bucket}"), _purge(f"KV_{bucket}"))
    ]


def _acks(stream: str) -> list[str]:
    """With and without a domain in front of the stream's name."""
    return [f"$JS.ACK.{stream}.>", f"$JS.ACK.*.*.{stream}.>"]


def _ordered_reader(stream: str) -> list[str]:
    return [
        f"{_API}.CONSUMER.CREATE.{stream}",
        f"{_API}.CONSUMER.CREATE.{stream}.>",
        f"{_API}.CONSUMER.DELETE.{stream}.*",
        f"$JS.FC.{stream}.>",
    ]


def _object_reads(*buckets: str) -> list[str]:
    return [
        f"{_API}.STREAM.NAMES",
        *(
            subject
            for bucket in buckets
            for subject in (*_reads(f"OBJ_{bucket}"), *_ordered_reader(f"OBJ_{bucket}"))
        ),
    ]


def _object_writes(*buckets: str) -> list[str]:
    """Prompts that are long, files, and their deletion. Tokenizers are checked by their readers."""
    return [
        subject
        for bucket in buckets
        for subject in (f"$O.{bucket}.C.>", f"$O.{bucket}.M.>", _purge(f"OBJ_{bucket}"))
    ]
