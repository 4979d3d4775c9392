"""What the format of an answer asks of the sampler and the detokenizer."""

from __future__ import annotations

import msgspec

from frontend.fields.sampling_fields import Sampling
from frontend.models.model_directory import ServedModel
from frontend.parsers.answer_parsers import AnswerParsers
from frontend.surfaces.tools.answer_styles import mark_ids
from frontend.surfaces.tools.tool_fields import ToolUse
from frontend.surfaces.tools.tool_grammar import ToolGrammar
from shared.errors import InvalidRequest
from shared.protocol.reply import AnswerFormat


def with_answer(
    sampling: Sampling, answer: AnswerFormat | None, use: ToolUse | None, model: ServedModel
) -> Sampling:
    """With the grammar of the calls, and the marks as visible text. Raises InvalidRequest."""
    if answer is None:
        return sampling
    token_ids = mark_ids(AnswerParsers.of(answer), model.text.tokenizer)
    text = msgspec.structs.replace(sampling.text, shown_ids=tuple(token_ids.values()))
    sampling = msgspec.structs.replace(sampling, text=text)
    content = sampling.params.grammar
    if use is None or not (use.is_constrained or content):
        return sampling
    if content is not None and use.is_required:
        raise InvalidRequest(
            f"'{sampling.grammar_param}' and a required tool exclude each other",
            param=sampling.grammar_param,
        )
    grammar = ToolGrammar(use, answer, token_ids).grammar(content)
    params = msgspec.structs.replace(sampling.params, grammar=grammar)
    return msgspec.structs.replace(sampling, params=params, grammar_param="tools")
