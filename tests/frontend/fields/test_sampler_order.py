"""llama.cpp's `samplers`, `repeat_penalty` and `repeat_last_n`."""

from __future__ import annotations

from typing import Any

import pytest

from shared.protocol.sampling import SamplingParams
from tests.frontend.fields.test_validation import assert_refused, chat, completion_body

# What its web page sends unless somebody changes it.
DEFAULTS: dict[str, Any] = {
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
                 "temperature"],
    "repeat_last_n": 64, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
    "xtc_probability": 0.0, "xtc_threshold": 0.1, "typical_p": 1.0, "dynatemp_range": 0.0,
}  # fmt: skip


async def params(**fields: Any) -> SamplingParams:
    return (await chat(**fields)).sampling


async def test_defaults_that_ask_for_nothing_need_no_level() -> None:
    asked = await params(**DEFAULTS, temperature=1.0, top_k=40)
    assert (asked.needed_level, asked.samplers, asked.penalty_last_n) == (1, (), None)
    cold = await params(**DEFAULTS, temperature=0, top_k=40, top_p=0.9)
    assert (cold.needed_level, cold.temperature) == (1, 0.0)
    usual = await params(samplers="etmkp", temperature=0.7, min_p=0.1, top_k=40, top_p=0.9)
    assert (usual.needed_level, usual.top_p) == (1, 0.9)


async def test_an_order_that_differs_is_taken() -> None:
    asked = await params(**DEFAULTS, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
    assert asked.samplers == ("top_k", "top_p", "min_p", "temperature")
    assert asked.needed_level == 2
    letters = await params(samplers="kpt", temperature=0.8, top_k=40, top_p=0.95)
    assert letters.samplers == ("top_k", "top_p", "temperature")


async def test_what_is_not_named_does_nothing() -> None:
    fields = {"temperature": 0.5, "dynatemp_range": 0.2, "top_k": 3, "repeat_penalty": 1.2}
    asked = await params(samplers=["top_k"], dry_multiplier=1, xtc_probability=1, **fields)
    assert (asked.top_k, asked.temperature, asked.dynatemp_range) == (3, 1.0, 0.0)
    assert (asked.repetition_penalty, asked.dry_multiplier, asked.xtc_probability) == (1, 0, 0)
    nothing = await params(samplers=[], **fields)
    assert (nothing.top_k, nothing.temperature, nothing.needed_level) == (0, 1.0, 2)


async def test_penalties_look_back_as_far_as_llama_cpps() -> None:
    def told(params: SamplingParams) -> tuple[float, float, int | None]:
        return params.repetition_penalty, params.presence_penalty, params.penalty_last_n

    assert told(await params(repeat_penalty=1.1)) == (1.1, 0, 64)
    assert told(await params(repeat_penalty=1.1, repeat_last_n=-1)) == (1.1, 0, None)
    assert told(await params(repetition_penalty=1.1)) == (1.1, 0, None)
    assert told(await params(repetition_penalty=1.1, repeat_last_n=9)) == (1.1, 0, 9)
    assert told(await params(presence_penalty=1, repeat_last_n=-1)) == (1, 1, -1)
    assert told(await params(repeat_penalty=1.1, presence_penalty=1, repeat_last_n=0)) == (
        1,
        0,
        None,
    )


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"samplers": ["top_k", "top_k"]}, "samplers", "invalid_value"),
        ({"samplers": ["top_k"] * 10_000}, "samplers", "invalid_value"),
        ({"samplers": ["mirostat"]}, "samplers", "unsupported_parameter"),
        ({"samplers": "kz"}, "samplers", "unsupported_parameter"),
        ({"samplers": {"top_k": 1}}, "samplers", "invalid_type"),
        ({"samplers": [["top_k"]]}, "samplers[0]", "invalid_type"),
        ({"samplers": "ke", "top_k": 3, "repeat_penalty": 2}, "samplers", "unsupported_parameter"),
        ({"samplers": "de", "dry_multiplier": 1, "presence_penalty": 1}, "samplers", None),
        ({"repeat_last_n": -2}, "repeat_last_n", "invalid_value"),
        ({"repeat_last_n": 1 << 80}, "repeat_last_n", "invalid_value"),
        ({"repeat_penalty": 0}, "repeat_penalty", "invalid_value"),
        ({"repeat_penalty": 1.2, "repetition_penalty": 1.1}, "repeat_penalty", "invalid_value"),
    ],
)
async def test_what_cannot_be_is_named(
    fields: dict[str, Any], param: str, code: str | None
) -> None:
    code = code or "unsupported_parameter"
    await assert_refused("completions", completion_body(**fields), 400, param, code)
