"""The error tree: what can go wrong, the HTTP status of it, and the words a client reads."""

from __future__ import annotations

import math
from collections.abc import Mapping


class JetflockError(Exception):
    """Root of every error that jetflock raises on purpose."""

    exit_status: int = 2  # of the program that it ends


class ConfigError(JetflockError):
    """The configuration, or what it points to, cannot be used; the message says what to do."""


class ProtocolError(JetflockError):
    """A message on the wire does not follow the protocol."""


class UnknownVersion(ProtocolError):
    """A message of a protocol version that this build does not speak."""

    def __init__(self, version: object, known: int) -> None:
        told = repr(version) if isinstance(version, int) else type(version).__name__
        super().__init__(f"message has protocol version {told}, this build speaks {known}")


class NewerLevel(ProtocolError):
    """A message of a newer build, which uses what this one does not know: for others to take."""

    def __init__(self, level: int, known: int) -> None:
        super().__init__(f"the message needs feature level {level}, this build knows {known}")
        self.level = level


class MalformedMessage(ProtocolError):
    """The bytes are not MessagePack, or not of the expected type."""


class EngineHung(JetflockError):
    """The engine made no step for too long; the worker has given its requests back."""

    exit_status = 70  # EX_SOFTWARE: the configuration is not to blame, it may be started again


class GpuMemoryShort(JetflockError):
    """Not even the smallest piece of a step has room on the GPU: its engine has to end."""

    def __init__(self) -> None:
        super().__init__(
            "the GPU has no memory for the smallest piece of a step: another program takes it, or "
            "gpu_memory_utilization is too large; this engine ends, another one is started"
        )


class NotCapturable(JetflockError):
    """Work on a GPU that a CUDA graph cannot hold; the message says why."""


class GrammarError(JetflockError):
    """A grammar cannot be used; the message says why."""


class ProcessorFault(JetflockError):
    """A logits processor of the operator fails its request; the message says how."""


class IncarnationMismatch(ConfigError):
    """The streams on the server are not the ones this configuration expects."""


class OutdatedBuild(ConfigError):
    """The service has gone on to a feature level that this build does not know."""

    def __init__(self, in_force: int, known: int) -> None:
        super().__init__(
            f"the service is at feature level {in_force}, this build knows {known}: use the "
            "version of jetflock that the other roles have (jetflock admin level shows them)"
        )


class LogWentBack(ConfigError):
    """The token log has lost records that this process has seen: it must be started anew."""


class BrokerError(JetflockError):
    """JetStream refused an operation; `err_code` is the server's own number."""

    def __init__(self, description: str, err_code: int = 0) -> None:
        super().__init__(description)
        self.err_code = err_code


class BrokerUnavailable(BrokerError):
    """No answer from JetStream: it is unknown whether the operation took place."""


class WrittenByNewer(BrokerUnavailable):
    """What is stored was written under a newer feature level: this build can say nothing of it."""


class JetStreamAbsent(BrokerUnavailable):
    """No server hears JetStream's API: it is switched off, and nobody will ever answer."""


class LimitReached(BrokerError):
    """The stream holds as much as it may."""


class QueueClosed(BrokerError):
    """The queue takes no request any more: the service has moved to other streams."""


class AlreadyStored(BrokerError):
    """The stream holds one message a subject, and has one on this subject."""


class CasConflict(BrokerError):
    """A compare-and-set was refused: never proof of being fenced, read back (PROTOCOL 9.1)."""


class RequestError(JetflockError):
    """A request that is answered with an error: OpenAI's error object over HTTP and NATS alike.

    `param` names the field of the request body, `code` is a stable string.
    """

    # SDKs repeat each 409 and 500 by themselves: these would end the same way again.
    is_final: bool = False
    status_code: int = 500
    error_type: str = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(RequestError):
    """A field is missing, of the wrong type, or out of range."""

    status_code = 400
    error_type = "invalid_request_error"
    code = "invalid_value"


class UnsupportedParameter(InvalidRequest):
    """A field that is known but not supported: refused by name, never ignored in silence."""

    code = "unsupported_parameter"

    def __init__(self, param: str, detail: str = "is not supported") -> None:
        super().__init__(f"'{param}' {detail}", param=param)


class UnknownField(InvalidRequest):
    """A field that nobody knows, where such are refused."""

    code = "unknown_field"

    def __init__(self, param: str, nearest: str | None) -> None:
        hint = f"; did you mean '{nearest}'?" if nearest else ""
        super().__init__(f"'{param}' is no field that is known here{hint}", param=param)


class ContextLengthExceeded(InvalidRequest):
    """Prompt and requested output do not fit the model's context."""

    code = "context_length_exceeded"

    def __init__(
        self,
        num_prompt_tokens: int | None,
        max_context_len: int,
        max_tokens: int | None,
        param: str,
        *,
        subject: str = "the prompt",
    ) -> None:
        """Without a number of tokens, there are so many that nobody counted them."""
        number = "more" if num_prompt_tokens is None else f"{num_prompt_tokens} tokens"
        wanted = f" and max_tokens={max_tokens}" if max_tokens is not None else ""
        super().__init__(
            f"This model's maximum context length is {max_context_len} tokens, "
            f"but {subject} has {number}{wanted}.",
            param=param,
        )


class AuthenticationFailed(RequestError):
    """The API key is wrong or absent."""

    status_code = 401
    error_type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(RequestError):
    """A page in a browser may not ask this."""

    status_code = 403
    error_type = "permission_error"
    code = "forbidden"


class NotFound(RequestError):
    """An unknown path, model or stream."""

    status_code = 404
    error_type = "invalid_request_error"
    code = "not_found"


class StreamNotFound(NotFound):
    """No stream has this id, or none of this API key."""

    code = "stream_not_found"

    def __init__(self, stream_id: str) -> None:
        super().__init__(
            f"No stream {stream_id[:64]!r} is known: it may be too old, or belong to another API "
            "key."
        )


class ModelNotFound(NotFound):
    """No model card bears this name."""

    code = "model_not_found"

    def __init__(self, model: str, served: str = "") -> None:
        """`served` is a sentence on what could be asked for."""
        super().__init__(f"The model '{model}' does not exist. {served}".rstrip(), param="model")


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    status_code = 405
    error_type = "invalid_request_error"
    code = "method_not_allowed"


class DeadlineExceeded(RequestError):
    """The deadline passed before the request was finished."""

    status_code = 408
    error_type = "timeout_error"
    code = "deadline_exceeded"


class ResumeConflict(RequestError):
    """The client's text is not a prefix of this stream: never spliced."""

    is_final = True
    status_code = 409
    error_type = "invalid_request_error"
    code = "resume_mismatch"


class NotForkable(RequestError):
    """The stream is known, and cannot be gone on with from there."""

    is_final = True
    status_code = 409
    error_type = "invalid_request_error"
    code = "not_forkable"


class RequestNotKept(NotForkable):
    """What was asked of a stream that is over is nowhere any more."""

    code = "request_not_kept"


class ConversationLocked(RequestError):
    """A response is being made in the conversation, or somebody else has just changed it."""

    status_code = 409
    error_type = "invalid_request_error"
    code = "conversation_locked"

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"Something else goes on in conversation {conversation_id!r}: try again in a few "
            "seconds.",
            param="conversation",
        )


class IdempotencyConflict(RequestError):
    """The idempotency key stands for a request with another body."""

    is_final = True
    status_code = 409
    error_type = "invalid_request_error"
    code = "idempotency_key_reused"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The idempotency key {key!r} was used with another body.", param="Idempotency-Key"
        )


class RequestTooLarge(RequestError):
    """The body is over the limit."""

    status_code = 413
    error_type = "invalid_request_error"
    code = "request_too_large"


class StorageFull(RequestError):
    """Files and batches use all the bytes that they may."""

    status_code = 413
    error_type = "invalid_request_error"
    code = "storage_full"


class RequestTimeout(RequestError):
    """The head or the body of the request did not arrive in time."""

    status_code = 408
    error_type = "timeout_error"
    code = "request_timeout"


class HeadersTooLarge(RequestError):
    """Request line and headers are over the limit."""

    status_code = 431
    error_type = "invalid_request_error"
    code = "headers_too_large"


class UnsupportedEncoding(RequestError):
    """The body is compressed: it could be a bomb, and JSON of prompts is small."""

    status_code = 415
    error_type = "invalid_request_error"
    code = "unsupported_encoding"


class UnsupportedContentType(RequestError):
    """What a form sends is no JSON."""

    status_code = 415
    error_type = "invalid_request_error"
    code = "unsupported_content_type"


class QueueFull(RequestError):
    """The queue is full: the client may come back after `retry_after_s`."""

    status_code = 429
    error_type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(QueueFull):
    """More requests come than can be put into the queue, however much room it has."""

    code = "overloaded"


class RateLimited(RequestError):
    """A key has reached one of its limits: its client may come back after `retry_after_s`."""

    status_code = 429
    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, wait_s: float, *, kind: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(message)
        self.error_type = kind  # as OpenAI says what there was too much of: requests, tokens
        self.retry_after_s = max(1, math.ceil(wait_s))
        self.headers = headers  # the state of all limits


class RequestCancelled(RequestError):
    """The request was ended by its client, or on its behalf."""

    status_code = 499
    error_type = "cancelled"
    code = "cancelled"


class InternalError(RequestError):
    """The fault is the service's own."""

    status_code = 500
    error_type = "server_error"
    code = "internal_error"


class Poisoned(InternalError):
    """Every worker that ran the request crashed: asked again, it would crash others."""

    is_final = True
    code = "poison"


class RecordsLost(InternalError):
    """The broker has lost what it had stored of a request: its text cannot go on as it began."""

    code = "records_lost"

    def __init__(self, group_id: str) -> None:
        super().__init__(
            f"NATS has lost stored records of {group_id}: the text so far cannot be continued. "
            "Ask again."
        )


class ServiceUnavailable(RequestError):
    """NATS is away, or the service is shutting down."""

    status_code = 503
    error_type = "service_unavailable"
    code = "service_unavailable"

    def __init__(self, message: str, retry_after_s: int = 1, *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class ServiceMoved(ServiceUnavailable):
    """The queue takes no request any more: another one does, of other streams."""

    def __init__(self) -> None:
        super().__init__("The service has just moved to another queue: ask again.")


class PerhapsQueued(ServiceUnavailable):
    """The queue did not say whether it has stored a request: what belongs to it must stay."""
