"""What /classify and /pooling answer."""

from __future__ import annotations

from typing import Literal

from frontend.text.usage import PromptUsage
from frontend.text.wire_struct import Count, WireStruct


class TextClass(WireStruct, frozen=True, kw_only=True):
    """The class of one input."""

    index: Count
    label: str | None  # the likeliest; null: the model's labels have changed since
    probs: list[float]  # of all labels, in the order of the model's id2label
    num_classes: Count


class ClassList(WireStruct, frozen=True, kw_only=True):
    """Those of all inputs. Streamed, each comes by itself, and the list at the end is empty."""

    id: str
    object: Literal["list"]
    created: Count  # unix seconds
    model: str
    data: list[TextClass]
    usage: PromptUsage


class PooledVector(WireStruct, frozen=True, kw_only=True):
    """The vector of one input, or one of each token. In base64 it is little-endian float32."""

    object: Literal["pooling"]
    index: Count
    data: list[float | list[float]] | str


class PooledList(WireStruct, frozen=True, kw_only=True):
    """Those of all inputs. Streamed, each comes by itself, and the list at the end is empty."""

    id: str
    object: Literal["list"]
    created: Count  # unix seconds
    model: str
    data: list[PooledVector]
    usage: PromptUsage
