"""OpenAI's response object."""

from __future__ import annotations

from typing import Any

import msgspec

from frontend.answers.event_writer import public_id
from frontend.answers.logprob_view import chat_logprobs
from frontend.answers.text_pieces import TextPieces
from frontend.generation import failure_of
from frontend.responses.output_parser import OutputParser
from frontend.responses.stored_response import ResponseView, StoredResponse
from shared.logprobs import unpack_logprobs
from shared.protocol import Done, Finish, FinishReason
from shared.token_ids import unpack_token_ids

_STATUS = {FinishReason.STOP: "completed", FinishReason.LENGTH: "incomplete"}


def status_of(finish: Finish) -> str:
    """As OpenAI spells it."""
    if finish.reason is FinishReason.CANCEL:
        return "cancelled"
    return _STATUS.get(finish.reason, "failed")


def unfinished_response(record: StoredResponse, status: str) -> dict[str, Any]:
    """Of a request that waits or runs: `queued` or `in_progress`."""
    return {
        "id": public_id(record.reply),
        "object": "response",
        "created_at": record.reply.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": record.reply.model,
        "output": [],
        **msgspec.structs.asdict(record.params),
    }


def done_response(view: ResponseView, done: Done) -> dict[str, Any]:
    """Of a result as it is stored."""
    error = failure_of(done.finish, view.record.reply)
    return finished_response(
        view.record,
        done.finish,
        done_output(view, done).views(),
        len(unpack_token_ids(done.token_ids)),
        "" if error is None else error.message,
    )


def done_output(view: ResponseView, done: Done) -> OutputParser:
    """What a stream of it told, made in one go."""
    record, num_top = view.record, view.record.reply.num_top
    token_ids = unpack_token_ids(done.token_ids)
    if num_top is None:
        output = OutputParser(record, lambda _: [])
        output.add(done.text, len(token_ids))
    else:
        records, texts = unpack_logprobs(done.logprobs, num_top), view.model_text.token_texts
        output = OutputParser(record, lambda at: chat_logprobs(records[at], texts)["content"])
        pieces = TextPieces(view.model_text.tokenizer, record.text)
        for piece in pieces.add(token_ids) + pieces.finish():
            output.add(piece.text, piece.tokens.stop)
    output.finish(done.finish, len(token_ids))
    return output


def finished_response(
    record: StoredResponse,
    finish: Finish,
    output: list[dict[str, Any]],
    num_tokens: int,
    error: str,
) -> dict[str, Any]:
    """`error`: what went wrong, of a request that failed."""
    status = status_of(finish)
    response = unfinished_response(record, status)
    response["output"] = output
    if finish.reason is FinishReason.LENGTH:
        response["incomplete_details"] = {"reason": "max_output_tokens"}
    if status == "failed":
        response["error"] = {"code": "server_error", "message": error}
    num_prompt_tokens = record.reply.num_prompt_tokens
    response["usage"] = {
        "input_tokens": num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": finish.num_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": num_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt_tokens + num_tokens,
    }
    return response
