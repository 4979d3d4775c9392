"""Texts that a cross-encoder computes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt


class EncoderInput(NamedTuple):
    """A prompt of two texts."""

    token_ids: Sequence[int]
    second_start: int  # index of the first token of the second text; 0: all are of the first


@dataclass(frozen=True, slots=True)
class PaddedTexts:
    """Of about the same length, so that little is padding. On the host."""

    idx: list[int]  # which of the inputs
    input_ids: npt.NDArray[np.int64]  # [num_texts, num_tokens]
    token_types: npt.NDArray[np.int64]  # the same; 1: of the second text
    mask: npt.NDArray[np.int64] | None  # the same; 0: padding. None: there is none

    @classmethod
    def groups(cls, inputs: Sequence[EncoderInput], pad_token_id: int) -> list[Self]:
        """All of them, each in one group."""
        lengths = [len(each.token_ids) for each in inputs]
        return [cls._padded(idx, inputs, pad_token_id) for idx in length_groups(lengths)]

    @classmethod
    def _padded(cls, idx: list[int], inputs: Sequence[EncoderInput], pad_token_id: int) -> Self:
        lengths = np.array([len(inputs[each].token_ids) for each in idx])
        shape = len(idx), int(lengths.max())
        places = np.arange(shape[1])
        is_token = places < lengths[:, None]
        starts = np.array([inputs[each].second_start or shape[1] for each in idx])
        input_ids = np.full(shape, pad_token_id, np.int64)
        input_ids[is_token] = np.concatenate([inputs[each].token_ids for each in idx])
        token_types = (is_token & (places >= starts[:, None])).astype(np.int64)
        mask = None if is_token.all() else is_token.astype(np.int64)
        return cls(idx, input_ids, token_types, mask)


def length_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Indices: in a group none is much longer than the shortest."""
    groups: list[list[int]] = []
    most = 0
    for idx in sorted(range(len(lengths)), key=lengths.__getitem__):
        if lengths[idx] > most:
            groups.append([])
            most = lengths[idx] * 5 // 4 + 16
        groups[-1].append(idx)
    return groups
