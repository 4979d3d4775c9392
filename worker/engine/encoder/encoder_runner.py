"""Runs planned steps of an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from shared.protocol.sampling import PoolingKind, PoolingParams
from worker.engine.device.gpu_device import GpuDevice, Moment, download, upload
from worker.engine.device.gpu_memory import compute_halved, has_memory
from worker.engine.encoder.encoder_model import EncoderModel
from worker.engine.encoder.sentence_head import PooledText
from worker.engine.request.req import Req
from worker.engine.request.schedule_batch import ScheduleBatch
from worker.engine.request.step_result import SampleError, StepHandle, StepResult


class EncoderInput(NamedTuple):
    """A prompt of one text or two."""

    token_ids: Sequence[int]
    kind: PoolingKind
    second_start: int  # index of the first token of the second text; 0: all are of the first


@dataclass(frozen=True, slots=True)
class PaddedTexts:
    """Computed together: of about the same length, so that little is padding. On the host."""

    idx: list[int]  # which of the inputs
    input_ids: npt.NDArray[np.int64]  # [num_texts, num_tokens]
    token_types: npt.NDArray[np.int64]  # the same; 1: of the second text
    mask: npt.NDArray[np.int64] | None  # the same; 0: padding. None: there is none
    pooled: list[PooledText]

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
        pooled = [PooledText(len(inputs[each].token_ids), inputs[each].kind) for each in idx]
        return cls(idx, input_ids, token_types, mask, pooled)


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


class EncoderRunner:
    """Computes a prompt when its last chunk comes, as a whole: earlier chunks only count."""

    def __init__(self, model: EncoderModel, device: GpuDevice) -> None:
        self._model = model
        self._device = device

    def launch(self, batch: ScheduleBatch) -> StepHandle:
        reqs: Sequence[Req] = [entry.req for entry in batch.others if entry.gives_embedding]
        parts = compute_halved(reqs, self._compute, _halves) if reqs else []
        num_fitting = None if len(parts) < 2 else max(part.num_tokens for part in parts)
        return _EncoderStep(self._device.mark(), parts, num_fitting)

    def _compute(self, reqs: Sequence[Req]) -> _Texts | None:
        """None: the GPU has no memory for them now."""
        inputs = [
            EncoderInput(req.token_ids, req.pooling.kind, req.pooling.second_start)
            for req in reqs
            if req.pooling is not None
        ]
        groups = PaddedTexts.groups(inputs, self._model.pad_token_id)
        outputs: list[torch.Tensor] = []

        @torch.inference_mode()
        def work() -> None:
            outputs.extend(download(self._device, self._outputs(group)) for group in groups)

        if not has_memory(self._device, work):
            return None
        return _Texts(reqs, groups, outputs, self._model.pooled)

    def _outputs(self, texts: PaddedTexts) -> torch.Tensor:
        """[num_texts, num_outputs] float32."""
        return self._model.outputs(
            upload(self._device, texts.input_ids),
            upload(self._device, texts.token_types),
            None if texts.mask is None else upload(self._device, texts.mask),
            texts.pooled,
        )


def _halves(reqs: Sequence[Req]) -> tuple[Sequence[Req], Sequence[Req]] | None:
    middle = len(reqs) // 2
    return (reqs[:middle], reqs[middle:]) if middle else None


@dataclass(frozen=True, slots=True, eq=False)
class _Texts:
    """Prompts that are computed at once."""

    reqs: Sequence[Req]
    groups: Sequence[PaddedTexts]
    outputs: Sequence[torch.Tensor]  # of each group, on the host, filled when the moment has come
    pooled: Callable[[torch.Tensor, PoolingParams], bytes | SampleError]  # of one text's

    @property
    def num_tokens(self) -> int:
        return sum(req.num_tokens for req in self.reqs)

    def vectors(self) -> Iterator[tuple[int, bytes | SampleError]]:
        """The vectors, with the run id of each."""
        for group, rows in zip(self.groups, self.outputs, strict=True):
            for idx, row in zip(group.idx, rows, strict=True):
                req = self.reqs[idx]
                if req.pooling is not None:
                    yield req.run_id, self.pooled(row, req.pooling)


@dataclass(frozen=True, slots=True, eq=False)
class _EncoderStep:
    """The handle of a launched step."""

    moment: Moment
    parts: Sequence[_Texts]
    num_fitting: int | None

    def choose(self) -> None:
        raise AssertionError("embeddings choose no tokens")

    @torch.inference_mode()
    def collect(self) -> StepResult:
        self.moment.wait()
        vectors = dict(pair for part in self.parts for pair in part.vectors())
        return StepResult([], embeddings=vectors, num_fitting=self.num_fitting)
