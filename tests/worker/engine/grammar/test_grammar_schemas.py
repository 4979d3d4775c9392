"""Every output of every schema validates, greedy and drawn, as the frontend would ask for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from frontend.fields.grammar_fields import GrammarFields, resolve_grammar
from shared.protocol.finish import FinishReason
from shared.protocol.sampling import Grammar
from shared.protocol.token_ids import pack_token_ids
from tests.json_schemas import SCHEMAS
from tests.worker.engine.json_llama import decode, encode, save_json_llama
from tests.worker.engine.tiny_models import Rig
from tests.worker.engine_fakes import make_add
from worker.engine_link.engine_messages import AddRequest

MAX_TOKENS = 500
GREEDY: dict[str, Any] = {"temperature": 0.0}
# One of them for each schema, in turn.
DRAWN: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.7, "seed": 12, "top_p": 0.95},
]
ROOM: dict[str, Any] = {"max_running": 128, "num_kv_tokens": 128 * 600}
MAX_CUT = 0.04  # share of outputs that may be too long to end: what they are is not known


@dataclass(frozen=True)
class Outputs:
    """Of one schema, greedy and drawn: the text, or None where it was cut."""

    texts: list[str | None]
    adds: list[AddRequest]
    token_ids: list[list[int]]


def grammar_of(schema: Any) -> Grammar:
    wanted = resolve_grammar(GrammarFields(json_schema=schema))
    assert wanted is not None
    return wanted.grammar


@pytest.fixture(scope="module")
def json_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_json_llama(tmp_path_factory.mktemp("json_llama"))


@pytest.fixture(scope="module")
def outputs(json_llama: Path) -> dict[str, Outputs]:
    """All at once: requests with different grammars share the steps."""
    rig = Rig(json_llama, **ROOM, max_step_tokens=1024)
    adds, num = [], 2
    for i, schema in enumerate(SCHEMAS.values()):
        grammar, prompt = grammar_of(schema), encode(f"Write {i}: ")
        for j, sampling in enumerate((GREEDY, DRAWN[i % len(DRAWN)])):
            run_id = 1 + i * num + j
            adds.append(
                make_add(run_id, prompt, max_tokens=MAX_TOKENS, grammar=grammar, **sampling)
            )
    tokens = rig.run(*adds)
    finishes = rig.channel.finishes()
    texts: list[str | None] = []
    for run_id in range(1, 1 + len(adds)):
        finish = finishes[run_id]
        assert finish.reason in (FinishReason.STOP, FinishReason.LENGTH), finish
        is_whole = finish.reason is FinishReason.STOP
        texts.append(decode(tokens[run_id]) if is_whole else None)
    in_order = [tokens[run_id] for run_id in range(1, 1 + len(adds))]
    parts = {name: slice(i * num, (i + 1) * num) for i, name in enumerate(SCHEMAS)}
    return {name: Outputs(texts[part], adds[part], in_order[part]) for name, part in parts.items()}


@pytest.mark.parametrize("name", SCHEMAS)
def test_outputs_validate(name: str, outputs: dict[str, Outputs]) -> None:
    schema = SCHEMAS[name]
    validator_type = jsonschema.validators.validator_for(
        schema, default=jsonschema.Draft202012Validator
    )
    validator_type.check_schema(schema)
    validator = validator_type(schema, format_checker=validator_type.FORMAT_CHECKER)
    for text in outputs[name].texts:
        if text is not None:
            validator.validate(json.loads(text))


def test_resumed_in_the_middle_each_goes_on_as_it_did(
    json_llama: Path, outputs: dict[str, Outputs]
) -> None:
    wholes = {
        add.run_id: (add, token_ids)
        for each in list(outputs.values())[::4]
        for add, token_ids in zip(each.adds, each.token_ids, strict=True)
    }
    rests = Rig(json_llama, **ROOM).run(
        *(
            msgspec.structs.replace(
                add, output_ids=pack_token_ids(token_ids[: len(token_ids) // 2])
            )
            for add, token_ids in wholes.values()
        )
    )
    for run_id, (_, token_ids) in wholes.items():
        assert token_ids[len(token_ids) // 2 :] == rests[run_id]


def test_few_outputs_were_cut(outputs: dict[str, Outputs]) -> None:
    texts = [text for each in outputs.values() for text in each.texts]
    cut = [name for name, each in outputs.items() if None in each.texts]
    assert len(texts) == 2 * len(SCHEMAS) >= 2 * 150
    assert texts.count(None) <= MAX_CUT * len(texts), cut
    assert not [name for name, each in outputs.items() if not any(each.texts)]


def test_outputs_are_not_all_alike(outputs: dict[str, Outputs]) -> None:
    num_varied = sum(len(set(each.texts)) > 1 for each in outputs.values())
    assert num_varied > 0.7 * len(outputs)
