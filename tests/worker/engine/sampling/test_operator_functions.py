"""Logits processors of an operator's file: anywhere, with anybody, resumed, and when they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError
from shared.protocol.finish import FinishReason
from shared.protocol.sampling import ProcessorCall
from tests.worker.engine.cuda.late_device import LateDevice
from tests.worker.engine.cuda.test_gpu_engine import GpuRig
from tests.worker.engine.tiny_models import Rig, random_prompt
from tests.worker.engine_fakes import make_add
from worker.engine.request.token_functions import TokenFunctions
from worker.engine_link.engine_messages import AddRequest

FILE = """
import math

_LEAST = 5

def in_turns(params, prompt_ids, output_ids):
    step = params["step"]
    return range(_LEAST + len(output_ids) % step, 200, step)

def never(params, prompt_ids, output_ids):
    return {token_id: -math.inf for token_id in params["ids"]}

def unlike_the_prompt(params, prompt_ids, output_ids):
    return {token_id: -9.5 for token_id in set(prompt_ids)} if len(output_ids) % 2 else None

def breaks(params, prompt_ids, output_ids):
    return {10_000: 1.0} if len(output_ids) == params.get("at", 0) else None
"""
EVEN = ProcessorCall("in_turns", '{"step":3}')
CALLS = (EVEN, ProcessorCall("never", '{"ids":[8,11,14]}'), ProcessorCall("unlike_the_prompt"))
SAMPLING: dict[str, Any] = {"temperature": 1.0, "seed": 3, "ignore_eos": True, "max_tokens": 14}
PROMPT = random_prompt(30, 4)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("processors") / "processors.py"
    path.write_text(FILE)
    return str(path)


def add(
    run_id: int, output: list[int] | None = None, *calls: ProcessorCall, **sampling: Any
) -> AddRequest:
    return make_add(
        run_id, PROMPT, output or [], **SAMPLING | {"logits_processors": calls} | sampling
    )


def test_tokens_are_those_that_functions_leave_wherever_it_is_asked(
    tiny_llama: Path, file: str
) -> None:
    alone = Rig(tiny_llama, logits_processors=file).run(add(1, None, *CALLS))[1]
    assert len(alone) == 14
    assert all((token_id - 5) % 3 == idx % 3 for idx, token_id in enumerate(alone))
    assert not {8, 11, 14} & {*alone}
    company = [add(2, None, EVEN), add(3), add(4, None, seed=9, frequency_penalty=0.5)]
    for config in ({}, {"overlap": True}, {"max_step_tokens": 16, "max_running": 2}):
        rig = Rig(tiny_llama, logits_processors=file, **config)
        tokens = rig.run(*company, add(1, None, *CALLS))
        assert tokens[1] == alone
        assert tokens[3] != tokens[2]
        rest = rig.run(*(add(10 + num, alone[:num], *CALLS) for num in range(1, 13, 4)))
        for num in range(1, 13, 4):
            assert alone[:num] + rest[10 + num] == alone
    gpu = GpuRig(tiny_llama, LateDevice(), logits_processors=file, overlap=True)
    cpu = GpuRig(tiny_llama, None, logits_processors=file)
    assert gpu.run(*company, add(1, None, *CALLS)) == cpu.run(*company, add(1, None, *CALLS))


def test_a_function_that_fails_fails_its_request_alone(tiny_llama: Path, file: str) -> None:
    rig = Rig(tiny_llama, logits_processors=file, overlap=True)
    late = ProcessorCall("breaks", '{"at":3}')
    unreadable = ProcessorCall("in_turns", "{}")
    missing = ProcessorCall("other")
    tokens = rig.run(add(1, None, late), add(2), add(3, None, unreadable), add(4, None, missing))
    finishes = rig.channel.finishes()
    assert (len(tokens[1]), len(tokens[2])) == (3, 14)
    words = {
        1: "'breaks' failed: ValueError: token ids are 0 to",
        3: "'in_turns' failed: KeyError: 'step'",
        4: "has no logits processor 'other'",
    }
    for run_id, part in words.items():
        assert finishes[run_id].reason is FinishReason.ERROR
        assert part in (finishes[run_id].message or "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def one(params, prompt_ids, output_ids):\n    return 1 /", "is no Python"),
        ("class Kept:\n    pass", "Kept is a class, which keeps something"),
        ("def one(tokens): pass", "must be 'def one\\(params, prompt_ids, output_ids\\)'"),
        ("async def one(params, prompt_ids, output_ids): pass", "must be 'def one"),
        ("_nothing = 1", "defines no function"),
        ("def one(params, prompt_ids, output_ids): pass\n1 / 0", "ZeroDivisionError"),
        ("def one(params, prompt_ids, output_ids): pass\none = 1", "one is no function"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "processors.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        TokenFunctions.load(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        TokenFunctions.load(str(tmp_path / "other.py"))
