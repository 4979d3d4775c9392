"""Values of a wrong type are named by their place, in words that help."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from frontend.fields.request_body import convert
from shared.errors import InvalidRequest


class Circle(msgspec.Struct, tag_field="type", tag="circle"):
    radius: int


class Square(msgspec.Struct, tag_field="type", tag="square"):
    side: Annotated[str, msgspec.Meta(pattern="^[0-9]+$", description="digits")]


class Drawing(msgspec.Struct):
    colour: Literal["red", "blue"] | Circle | None = None
    shapes: Annotated[list[Circle | Square], msgspec.Meta(max_length=2)] = []
    names: dict[str, int] = {}


CIRCLE = {"type": "circle", "radius": 1}
LURE = "a - at `$.nowhere[7]`"


@pytest.mark.parametrize(
    ("body", "param", "code", "words"),
    [
        ({"colour": "green"}, "colour", "invalid_value", '"green", must be one of blue, red, an o'),
        ({"colour": LURE}, "colour", "invalid_value", "must be one of blue, red"),
        ({"colour": "x" * 5_000}, "colour", "invalid_value", '"xxxxx'),
        ({"colour": {"type": "oval"}}, "colour.type", "unsupported_parameter", "circle"),
        ({"shapes": [CIRCLE, {"type": LURE}]}, "shapes[1].type", "unsupported_parameter", "square"),
        ({"shapes": [CIRCLE, {"type": "circle"}]}, "shapes[1].radius", "missing_field", "required"),
        ({"shapes": [{"radius": 1}]}, "shapes[0].type", "missing_field", "required"),
        (
            {"shapes": [{"type": "square", "side": "x"}]},
            "shapes[0].side",
            "invalid_value",
            "digits",
        ),
        ({"shapes": [7]}, "shapes[0]", "invalid_type", "object"),
        ({"shapes": [CIRCLE] * 3}, "shapes", "invalid_value", "length of 3, must have at most 2"),
        ({"names": {LURE: "x"}}, "names", "invalid_type", "int"),
        (7, "", "invalid_type", "object"),
    ],
)
def test_a_wrong_value_is_named_by_its_place(body: Any, param: str, code: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert(body, Drawing)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert words in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("value", "wanted", "prefix", "param"),
    [
        ([CIRCLE, {"radius": "x"}], list[Circle], "input", "input[1].radius"),
        ({"radius": "x"}, Circle, "options.", "options.radius"),
        ({}, Circle, "options.", "options.radius"),
    ],
)
def test_the_prefix_says_where_a_value_stands(
    value: Any, wanted: Any, prefix: str, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert(value, wanted, prefix)
    assert caught.value.param == param
