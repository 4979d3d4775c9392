"""OpenAI's response object."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from frontend.jobs.stored_response import ResponseView, StoredResponse
from frontend.parsers.reasoning import REASONING_PARSERS
from frontend.streams.generation import failure_of
from frontend.surfaces.responses.output_parser import OutputParser
from frontend.surfaces.responses.response_answer import (
    IncompleteDetails,
    Response,
    ResponseError,
    ResponseStatus,
)
from frontend.text.event_writer import public_id
from frontend.text.logprob_view import token_views
from frontend.text.text_pieces import TextPieces
from frontend.text.usage import InputTokensDetails, OutputTokensDetails, TokenUsage
from shared.protocol.finish import Finish, FinishReason
from shared.protocol.logprobs import unpack_logprobs
from shared.protocol.reply import AnswerFormat
from shared.protocol.text import Done
from shared.protocol.token_ids import unpack_token_ids

_STATUS: Mapping[FinishReason, ResponseStatus] = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
}


def status_of(finish: Finish) -> ResponseStatus:
    """As OpenAI spells it."""
    if finish.reason is FinishReason.CANCEL:
        return "cancelled"
    return _STATUS.get(finish.reason, "failed")


def unfinished_response(record: StoredResponse, status: ResponseStatus) -> Response:
    """The response of a request that waits or runs: `queued` or `in_progress`."""
    return Response(
        id=public_id(record.reply),
        object="response",
        created_at=record.reply.created,
        status=status,
        error=None,
        incomplete_details=None,
        model=record.reply.model,
        output=[],
        **msgspec.structs.asdict(record.params),
    )


def done_response(view: ResponseView, done: Done) -> Response:
    """The response of a result as it is stored."""
    error = failure_of(done.finish, view.record.reply)
    token_ids = unpack_token_ids(done.token_ids)
    return finished_response(
        view.record,
        done.finish,
        done_output(view, done, token_ids),
        token_ids,
        "" if error is None else error.message,
    )


def done_output(view: ResponseView, done: Done, token_ids: list[int]) -> OutputParser:
    """What a stream of it told, made in one go."""
    record, texts = view.record, view.model_text.token_texts
    num_top = record.reply.num_top
    logprobs = [] if num_top is None else unpack_logprobs(done.logprobs, num_top)
    output = OutputParser(record, lambda at: token_views(logprobs[at], texts))
    if logprobs or _has_spelled_mark(record.reply.answer, done.text, token_ids):
        pieces = TextPieces(view.model_text.tokenizer, record.text)
        for piece in pieces.add(token_ids) + pieces.finish():
            output.add(piece.text, piece.tokens.stop)
    else:
        output.add(done.text, len(token_ids))
    output.finish(done.finish, len(token_ids))
    return output


def _has_spelled_mark(answer: AnswerFormat | None, text: str, token_ids: list[int]) -> bool:
    """Whether it takes the text of each token to know where the reasoning ended."""
    if answer is None or answer.reasoning is None or not token_ids:
        return False
    ends = REASONING_PARSERS.stored(answer.reasoning).ends
    return answer.reasoning_end_id not in token_ids and any(end in text for end in ends)


def finished_response(
    record: StoredResponse,
    finish: Finish,
    output: OutputParser,
    token_ids: list[int],
    error: str,
) -> Response:
    """`error`: what went wrong, of a request that failed."""
    status = status_of(finish)
    is_cut = finish.reason is FinishReason.LENGTH
    has_failed = status == "failed"
    return msgspec.structs.replace(
        unfinished_response(record, status),
        output=output.views(),
        incomplete_details=IncompleteDetails(reason="max_output_tokens") if is_cut else None,
        error=ResponseError(code="server_error", message=error) if has_failed else None,
        usage=_usage(record, finish, output, token_ids),
    )


def _usage(
    record: StoredResponse, finish: Finish, output: OutputParser, token_ids: list[int]
) -> TokenUsage:
    num_prompt_tokens = record.reply.num_prompt_tokens
    return TokenUsage(
        input_tokens=num_prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=finish.num_cached_tokens, cache_write_tokens=0
        ),
        output_tokens=len(token_ids),
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=output.num_reasoning_tokens(token_ids)
        ),
        total_tokens=num_prompt_tokens + len(token_ids),
    )
