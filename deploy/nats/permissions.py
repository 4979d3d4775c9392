"""What each role may publish and hear: nothing that its code does not do.

Written with the names of `shared/subjects.py`, `*` in the place of what is not known before: pools,
request ids, process ids. So rights end at the role: a worker may write what any worker may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shared.config import ERASER
from shared.subjects import LEVEL_KEY, Subjects, api_prefix, written_subject

ADMIN, FRONTEND, SERVICE, WORKER, DETOK = "admin", "frontend", "service", "worker", "detok"
ROLES = (ADMIN, FRONTEND, SERVICE, ERASER, WORKER, DETOK)

_API = "$JS.API"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects with wildcards; everything else is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def permissions(subjects: Subjects, service: str) -> dict[str, Permissions]:
    """The permissions of every role. Each hears only its own inbox: nobody listens to answers to
    others.
    """
    return {
        # Makes streams, consumers and model cards; `jetflock dead`, `jetflock admin`.
        ADMIN: Permissions((">",), (">",)),
        FRONTEND: _of_frontends(subjects),
        # Hears what strangers say, and publishes where they say: it can do nothing but answer.
        SERVICE: Permissions(
            (_inbox(subjects, SERVICE),),
            (f"{service}.*.>", "$SRV.>", _inbox(subjects, SERVICE)),
        ),
        ERASER: _of_erasers(subjects),
        WORKER: _of_workers(subjects),
        DETOK: _of_detokenizers(subjects),
    }


def _of_frontends(subjects: Subjects) -> Permissions:
    return _permissions(
        FRONTEND,
        publish=[
            subjects.requests("*", "*"),
            _ownership(subjects),
            subjects.control("*"),
            subjects.tenants,
            f"{subjects.prefix}.rpc.detok.*",
            subjects.response("*"),
            *_reads(subjects.requests_stream, subjects.tokens_stream),
            *_reads(subjects.responses_stream, subjects.results_stream, subjects.dead_stream),
            *_reads(subjects.bills_stream),
            _scan(subjects.events_stream),
            *_reads(*_buckets(subjects.models_bucket, subjects.workers_bucket)),
            f"{_API}.CONSUMER.INFO.{subjects.requests_stream}.*",
            *_bucket_writes(
                subjects.roles_bucket,
                subjects.attached_bucket,
                subjects.idempotency_bucket,
                subjects.files_bucket,
                subjects.batches_bucket,
                subjects.usage_bucket,
            ),
            f"$KV.{subjects.secrets_bucket}.*",
            *_reads(*_buckets(subjects.secrets_bucket)),
            subjects.batch_line("*", "*"),
            *_reads(subjects.batch_stream),
            *_reads(f"OBJ_{subjects.objects_bucket}", f"OBJ_{subjects.files_bucket}"),
        ],
        subscribe=[subjects.reply("*"), subjects.tenants, subjects.costs],
        subjects=subjects,
    )


def _of_erasers(subjects: Subjects) -> Permissions:
    """Take away what frontends may not: they hear nobody, and publish what they are not told."""
    return _permissions(
        ERASER,
        publish=[
            *_purges(
                subjects.responses_stream,
                subjects.batch_stream,
                *_buckets(
                    subjects.roles_bucket,
                    subjects.attached_bucket,
                    subjects.files_bucket,
                    subjects.batches_bucket,
                ),
            ),
            # What its owner wants erased, and what waits in the queue for nobody.
            *_erasures(
                subjects.requests_stream,
                subjects.tokens_stream,
                subjects.results_stream,
                subjects.dead_stream,
                subjects.responses_stream,
                subjects.batch_stream,
                *_buckets(subjects.attached_bucket, subjects.idempotency_bucket),
            ),
            *_object_reads(subjects.objects_bucket, subjects.files_bucket),
            *_object_writes(subjects.objects_bucket, subjects.files_bucket),
        ],
        subscribe=[],
        subjects=subjects,
    )


def _of_workers(subjects: Subjects) -> Permissions:
    return _permissions(
        WORKER,
        publish=[
            _ownership(subjects),
            f"{subjects.prefix}.tok.*.*",
            subjects.dead("*"),
            _scan(subjects.dead_stream),  # the oldest make room for it
            *_erasures(subjects.dead_stream),
            subjects.event("*"),
            subjects.prefixes("*"),
            subjects.offer("*", "*"),
            subjects.pages_key("*", "*"),
            subjects.nodes("*", "*"),
            f"{_API}.CONSUMER.MSG.NEXT.{subjects.requests_stream}.*",
            # Finds and removes what was acknowledged: an ack can do no less.
            *_acks(subjects.requests_stream),
            f"{_API}.STREAM.MSG.GET.{subjects.requests_stream}",
            *_erasures(subjects.requests_stream),
            *_reads(subjects.tokens_stream, subjects.results_stream),
            *_reads(*_buckets(subjects.models_bucket)),
            *_ordered_reader(subjects.tokens_stream),
            *_bucket_writes(subjects.workers_bucket),
            *_purges(*_buckets(subjects.workers_bucket)),
            f"{_API}.CONSUMER.INFO.{subjects.requests_stream}.*",
            *_object_reads(subjects.objects_bucket),
            *_object_writes(subjects.objects_bucket),
            _inbox(subjects, ADMIN),
        ],
        subscribe=[
            subjects.control("*"),
            subjects.prefixes("*"),
            subjects.offer("*", "*"),
            subjects.pages_key("*", "*"),
            subjects.nodes("*", "*"),
            subjects.admin("*"),
            subjects.admin_worker("*", "*"),
            subjects.presence("*"),
        ],
        subjects=subjects,
    )


def _of_detokenizers(subjects: Subjects) -> Permissions:
    return _permissions(
        DETOK,
        publish=[
            subjects.done("*"),
            subjects.bills("*"),
            subjects.response("*"),
            subjects.reply("*"),
            subjects.control("*"),
            subjects.costs,
            # Gives back what a dead worker had, takes out what is over.
            *_acks(subjects.requests_stream),
            *_reads(subjects.tokens_stream, subjects.results_stream, subjects.responses_stream),
            *_reads(subjects.bills_stream),
            *_ordered_reader(subjects.tokens_stream),
            *_bucket_writes(subjects.owners_bucket, subjects.floors_bucket, subjects.roles_bucket),
            *_reads(*_buckets(subjects.workers_bucket)),
            # Raises it when no role alive knows less.
            f"$KV.{subjects.meta_bucket}.{LEVEL_KEY}",
            # Its own, those of detokenizers and workers that died, and what is not there: a
            # write that changes nothing.
            *_purges(
                *_buckets(subjects.owners_bucket, subjects.roles_bucket, subjects.workers_bucket)
            ),
            subjects.presence("*"),
            *_object_reads(subjects.objects_bucket),
            _inbox(subjects, FRONTEND),
        ],
        subscribe=[
            f"{subjects.prefix}.rpc.detok.*",
            subjects.worker_died,
            subjects.presence("*"),
            f"$KV.{subjects.owners_bucket}.*",
        ],
        subjects=subjects,
    )


def on_prefixes(prefixes: Sequence[str], service: str) -> dict[str, Permissions]:
    """The permissions of every role on the streams of several prefixes: those of both sides of a
    move.

    Raises ConfigError for what is no prefix.
    """
    of_each = [permissions(Subjects(prefix), service) for prefix in prefixes]
    return {
        role: Permissions(
            tuple(dict.fromkeys(subject for each in of_each for subject in each[role].publish)),
            tuple(dict.fromkeys(subject for each in of_each for subject in each[role].subscribe)),
        )
        for role in of_each[0]
    }


def with_clients(
    roles: Mapping[str, Permissions], service: str, clients: Sequence[str]
) -> dict[str, Permissions]:
    """The roles, and clients in their account, who are answered on their own inboxes."""
    inboxes = {client: f"_INBOX_{client}.>" for client in clients}
    users = _answering(roles, inboxes.values())
    for client, inbox in inboxes.items():
        users[client] = Permissions((f"{service}.{client}.>",), (inbox,))
    return users


def to_other_accounts(roles: Mapping[str, Permissions]) -> dict[str, Permissions]:
    """The roles, where each client has an account of its own."""
    return _answering(
        roles, ["_R_.>"]
    )  # the server's, in place of the reply of an imported service


def in_domain(users: Mapping[str, Permissions], js_domain: str | None) -> dict[str, Permissions]:
    """The users, where the streams are in this JetStream domain: they say so in what they publish.

    What they would say without a domain stays: the server makes that of it at the hub.
    """
    if js_domain is None:
        return dict(users)
    return {
        user: Permissions(_with_domain(rights.publish, js_domain), rights.subscribe)
        for user, rights in users.items()
    }


def _with_domain(subjects: Iterable[str], js_domain: str) -> tuple[str, ...]:
    plain = tuple(subjects)
    far = (_in_domain(subject, js_domain) for subject in plain)
    return tuple(dict.fromkeys([*plain, *far]))


def _in_domain(subject: str, js_domain: str) -> str:
    if subject.startswith(f"{_API}."):
        return api_prefix(js_domain) + subject.removeprefix(f"{_API}.")
    return written_subject(subject, js_domain)


def _answering(roles: Mapping[str, Permissions], inboxes: Iterable[str]) -> dict[str, Permissions]:
    service = roles[SERVICE]
    return {**roles, SERVICE: Permissions((*service.publish, *inboxes), service.subscribe)}


def _permissions(
    user: str, publish: Iterable[str], subscribe: Iterable[str], subjects: Subjects
) -> Permissions:
    """Permissions with what every role does: look at the streams, hear its answers, ask itself."""
    own = _inbox(subjects, user)
    checks = [
        f"{_API}.STREAM.INFO.*",
        *_reads(*_buckets(subjects.meta_bucket)),
    ]
    return Permissions(tuple(dict.fromkeys([*publish, *checks, own])), (*subscribe, own))


def _inbox(subjects: Subjects, role: str) -> str:
    return f"{subjects.inbox_prefix(role)}.>"


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


def _purges(*streams: str) -> list[str]:
    return [f"{_API}.STREAM.PURGE.{stream}" for stream in streams]


def _erasures(*streams: str) -> list[str]:
    return [f"{_API}.STREAM.MSG.DELETE.{stream}" for stream in streams]


def _bucket_writes(*buckets: str) -> list[str]:
    """Read and write; what deletes, purges."""
    return [
        subject for bucket in buckets for subject in (f"$KV.{bucket}.>", *_reads(f"KV_{bucket}"))
    ]


def _acks(stream: str) -> list[str]:
    """The subjects of acknowledgements, with and without a domain in front of the stream's name."""
    return [f"$JS.ACK.{stream}.>", f"$JS.ACK.*.*.{stream}.>"]


def _ordered_reader(stream: str) -> list[str]:
    return [
        f"{_API}.CONSUMER.CREATE.{stream}",
        f"{_API}.CONSUMER.CREATE.{stream}.>",
        f"{_API}.CONSUMER.DELETE.{stream}.*",
        f"$JS.FC.{stream}.>",
        f"$JS.FC.*.*.{stream}.>",
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
    """Prompts that are long, files, and their deletion: a write may bear a header that removes all
    that was there. Tokenizers are checked by their readers.
    """
    return [
        subject
        for bucket in buckets
        for subject in (
            f"$O.{bucket}.C.>",
            f"$O.{bucket}.M.>",
            *_purges(f"OBJ_{bucket}"),
            *_erasures(f"OBJ_{bucket}"),
        )
    ]
