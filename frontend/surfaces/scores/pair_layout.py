"""How a model reads a query and a text together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tokenizers import Tokenizer

from frontend.models.chat_template import ChatTemplate
from frontend.models.model_directory import ServedModel
from shared.errors import InvalidRequest
from shared.protocol.reply import ScoreMethod

# What Qwen3-Reranker was trained with; any other model can be asked in the same words.
JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class NoRoom(Exception):
    """Not one token of the text fits beside the query and the model's own words."""


class PairPrompt(NamedTuple):
    """A query and a text as one."""

    token_ids: list[int]
    second_start: int = 0  # where the tokens of the second kind begin; 0: there are none


class PairLayout(Protocol):
    """Makes the prompt of a pair."""

    def encode(self, query: str, text: str, max_tokens: int | None) -> PairPrompt:
        """The text is cut at its end to fit into `max_tokens`, the query never. Raises NoRoom."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerPair:
    """As the tokenizer's own template joins two texts."""

    tokenizer: Tokenizer

    def encode(self, query: str, text: str, max_tokens: int | None) -> PairPrompt:
        first, second = self.tokenizer.encode_batch([query, text], add_special_tokens=False)
        if max_tokens is not None:
            num_special = self.tokenizer.num_special_tokens_to_add(True)
            room = max_tokens - len(first.ids) - num_special
            if len(second.ids) > room:
                if room < 1:
                    raise NoRoom
                second.truncate(room)
        pair = self.tokenizer.post_process(first, second, True)
        return PairPrompt(pair.ids, pair.type_ids.index(1) if 1 in pair.type_ids else 0)


@dataclass(frozen=True, slots=True)
class TemplatePair:
    """As messages of the model's chat template: query first, so that all texts share it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    has_roles: bool  # the template shows a query and a document by itself
    has_system: bool  # it shows a system message
    instruction: str | None

    def encode(self, query: str, text: str, max_tokens: int | None) -> PairPrompt:
        token_ids = self._token_ids(query, text)
        if max_tokens is None or len(token_ids) <= max_tokens:
            return PairPrompt(token_ids)
        (whole,) = self.tokenizer.encode_batch([text], add_special_tokens=False)
        offsets = whole.offsets
        num_kept = len(offsets)
        while (num_kept := num_kept - (len(token_ids) - max_tokens)) > 0:
            # Where one character is several tokens, it goes as a whole.
            end = min(offsets[num_kept - 1][1], offsets[num_kept][0])
            token_ids = self._token_ids(query, text[:end])
            if len(token_ids) <= max_tokens and end > 0:
                return PairPrompt(token_ids)
        raise NoRoom

    def _token_ids(self, query: str, text: str) -> list[int]:
        prompt = self.template.render(
            self._messages(query, text), kwargs={"enable_thinking": False}
        )
        (encoding,) = self.tokenizer.encode_batch_fast([prompt], add_special_tokens=False)
        token_ids: list[int] = encoding.ids
        return token_ids

    def _messages(self, query: str, text: str) -> list[dict[str, str]]:
        if self.has_roles:
            system = [] if self.instruction is None else [_message("system", self.instruction)]
            return [*system, _message("query", query), _message("document", text)]
        instruction = self.instruction or INSTRUCTION
        asked = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {text}"
        if not self.has_system:
            return [_message("user", f"{JUDGE}\n\n{asked}")]
        return [_message("system", JUDGE), _message("user", asked)]


def layout_of(model: ServedModel, instruction: str | None) -> PairLayout:
    """The layout of a model that scores. Raises InvalidRequest when it takes no instruction."""
    card = model.card.score
    assert card is not None, "checked before"
    template, tokenizer = model.text.chat_template, model.text.tokenizer
    has_roles = template is not None and template.knows_pairs
    if card.method is ScoreMethod.YES_NO or has_roles:
        template = model.chat_template()
        return TemplatePair(tokenizer, template, has_roles, _shows_system(template), instruction)
    if instruction is not None:
        raise InvalidRequest(
            f"The model '{model.name}' reads a query and a text, and no 'instruction'.",
            param="instruction",
        )
    return TokenizerPair(tokenizer)


def _shows_system(template: ChatTemplate) -> bool:
    """Some templates refuse system messages, others leave them out."""
    try:
        return JUDGE in template.render([_message("system", JUDGE), _message("user", "?")])
    except InvalidRequest:
        return False


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
