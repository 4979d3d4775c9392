"""The mix of requests: what each asks for, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

MODEL_NAME = "demo"
DIVERGENT_SEED = 1 << 40  # from here on workers go on differently: `role.py` sees to it
POISON_SEED = (1 << 50) + 7  # whoever runs it dies

_PROMPTS = (
    "Once upon a time there was a dragon who",
    "Tell me a story about a fox and a river.",
    "The little girl opened the door and",
    "Name three colours, then five animals.",
    "Count from one to twenty:",
    "A robot, a baker and a whale met in",
)
_STOPS = ([" and then the"], ["ed the", " happy to"], [". She was", "! The"], ["forest", "zzzz"])
_LETTERS = "äöüßéèñçåøæœ漢字仮名한국어русскийعربי😀🐉✨"
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer"},
        "likes": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 6},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One request; the same one has the same answer, whenever it is sent."""

    kind: str
    path: str
    body: dict[str, Any]
    is_streamed: bool = True
    is_slow: bool = False  # its client reads slowly

    @property
    def has_logprobs(self) -> bool:
        return bool(self.body.get("logprobs"))

    @property
    def has_choices(self) -> bool:
        return "n" in self.body

    @property
    def shows_pace(self) -> bool:
        """Whether its client sees each token at once: no other choices, nothing held back."""
        return not (self.is_slow or self.has_choices or self.kind == "stop")

    @property
    def is_divergent(self) -> bool:
        return self.kind == "divergent"


@dataclass(frozen=True, slots=True)
class CaseTokens:
    """Of the model's tokenizer."""

    letter_ids: list[int]  # tokens of pieces of characters
    special_ids: list[int]  # that no text shows

    @classmethod
    def read(cls, path: Path) -> CaseTokens:
        """From a tokenizer.json."""
        tokenizer = Tokenizer.from_file(str(path))
        letters = tokenizer.encode(_LETTERS, add_special_tokens=False).ids
        special = [idx for idx, token in tokenizer.get_added_tokens_decoder().items()
                   if token.special]  # fmt: skip
        return cls(sorted(set(letters)), sorted(special))


class CaseMaker:
    """Makes cases of all kinds in turn."""

    def __init__(self, seed: int, tokens: CaseTokens, max_tokens: int) -> None:
        self._rng = random.Random(seed)
        self._tokens = tokens
        self._max_tokens = max_tokens

    def make(self, num_cases: int, kinds: Sequence[str] = ()) -> list[Case]:
        """Of these kinds; of all when none is named."""
        makers: dict[str, Callable[[], Case]] = {
            "greedy": self._greedy,
            "sampled": self._sampled,
            "penalties": self._penalties,
            "stop": self._stop,
            "multi-byte": self._multi_byte,
            "schema": self._schema,
            "choices": self._choices,
            "logprobs": self._logprobs,
            "chat": self._chat,
            "native": self._native,
            "divergent": self._divergent,
        }
        names = kinds or tuple(makers)
        return [makers[names[idx % len(names)]]() for idx in range(num_cases)]

    def _completion(self, kind: str, **fields: Any) -> Case:
        is_streamed = self._rng.random() < 0.85
        prompt = f"{self._rng.choice(_PROMPTS)} {self._rng.randrange(10_000)} "
        body: dict[str, Any] = {
            "model": MODEL_NAME,
            "prompt": prompt,
            "max_tokens": self._num_tokens(),
            "seed": self._rng.randrange(1 << 31),
            "temperature": 0.9,
            "ignore_eos": True,
            # A stream that makes nothing visible would look as if it stood still.
            "logit_bias": {str(token_id): -100 for token_id in self._tokens.special_ids},
            **fields,
        }
        if is_streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        is_slow = is_streamed and self._rng.random() < 0.05
        return Case(kind, "/v1/completions", body, is_streamed, is_slow)

    def _num_tokens(self) -> int:
        """Of eight streams seven are short: many are in the middle when something strikes."""
        short = min(100, self._max_tokens)
        if self._rng.random() < 0.125:
            return self._rng.randint(short, self._max_tokens)
        return self._rng.randint(1, short)

    def _greedy(self) -> Case:
        return self._completion("greedy", temperature=0)

    def _sampled(self) -> Case:
        return self._completion("sampled", top_p=0.95, top_k=50)

    def _penalties(self) -> Case:
        return self._completion(
            "penalties", presence_penalty=0.6, frequency_penalty=0.4, repetition_penalty=1.1
        )

    def _stop(self) -> Case:
        """Strings that span tokens: what may begin one is held back."""
        return self._completion("stop", stop=self._rng.choice(_STOPS))

    def _multi_byte(self) -> Case:
        return self._completion(
            "multi-byte",
            logit_bias=None,
            allowed_token_ids=self._tokens.letter_ids,
            temperature=1.2,
        )

    def _schema(self) -> Case:
        return self._chat_case(
            "schema",
            ignore_eos=False,
            logit_bias=None,
            max_tokens=min(300, 2 * self._max_tokens),
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": _SCHEMA},
            },
        )

    def _choices(self) -> Case:
        return self._completion("choices", n=3, max_tokens=self._rng.randint(10, 80))

    def _logprobs(self) -> Case:
        return self._completion("logprobs", logprobs=2)

    def _chat(self) -> Case:
        return self._chat_case("chat", logprobs=True, top_logprobs=1)

    def _native(self) -> Case:
        return self._generate_case("native", temperature=0.8)

    def _divergent(self) -> Case:
        """Long: a worker that is woken shall find them still running elsewhere."""
        return self._generate_case(
            "divergent",
            seed=DIVERGENT_SEED + self._rng.randrange(1 << 31),
            temperature=1.0,
            max_tokens=self._rng.randint(self._max_tokens // 8, self._max_tokens // 4),
        )

    def _generate_case(self, kind: str, **fields: Any) -> Case:
        """Its answer tells the ids of the tokens."""
        case = self._completion(kind, **fields)
        body: dict[str, Any] = {
            "model": MODEL_NAME,
            "text": case.body["prompt"],
            "stream": case.is_streamed,
            "incremental_streaming_output": True,
            "sampling_params": {
                "max_new_tokens": case.body["max_tokens"],
                "ignore_eos": True,
                "logit_bias": case.body["logit_bias"],
                "temperature": case.body["temperature"],
                "seed": case.body["seed"],
            },
        }
        return Case(kind, "/generate", body, case.is_streamed, case.is_slow)

    def _chat_case(self, kind: str, **fields: Any) -> Case:
        case = self._completion(kind, **fields)
        body = dict(case.body)
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        return Case(kind, "/v1/chat/completions", body, case.is_streamed, case.is_slow)
