"""Runs planned steps on a GPU: staged and launched now, collected when they are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

import msgspec
import torch

from worker.engine.cuda.batch.step_plan import StepPlan
from worker.engine.cuda.kernels.draw_code import NOT_A_NUMBER, NOTHING_ALLOWED
from worker.engine.cuda.kv.device_page_table import DevicePageTable
from worker.engine.cuda.sampling.captured_draws import DrawCaptured
from worker.engine.cuda.sampling.device_logprobs import DeviceLogprobs
from worker.engine.cuda.sampling.gpu_sampler import GpuSampler
from worker.engine.cuda.steps.rank_runner import RankRunner
from worker.engine.cuda.tensor_parallel.followers import Followers
from worker.engine.cuda.tensor_parallel.rank_loras import adapter_numbers
from worker.engine.cuda.tensor_parallel.rank_orders import (
    NO_ROWS,
    KeepTokens,
    RankOrder,
    RunHead,
    RunStep,
)
from worker.engine.device.gpu_device import GpuDevice, Moment, Work, download, upload_tensor
from worker.engine.device.gpu_memory import compute_halved, has_memory
from worker.engine.images import ImageEncoder, ImageSpan, cut_spans, image_spans
from worker.engine.lora.lora_adapter import lora_batch
from worker.engine.models.model import ImageRows
from worker.engine.models.recurrent.state_cache import StatePlan
from worker.engine.request.arrival import Adapter
from worker.engine.request.schedule_batch import SamplePoint, ScheduleBatch
from worker.engine.request.step_result import SampleError, StepHandle, StepResult
from worker.engine.request.token_ranges import Ints
from worker.engine.sampling.pooler import Pooler
from worker.engine.sampling.prompt_scores import score_prompts
from worker.engine.sampling.sampling_batch import SamplingBatch, StepSampling

_ERRORS = {
    NOT_A_NUMBER: SampleError.NOT_A_NUMBER,
    NOTHING_ALLOWED: SampleError.NOTHING_ALLOWED,
}


@dataclass(frozen=True, slots=True)
class StepPiece:
    """Consecutive tokens of a step, and what is chosen behind them.

    Pieces are computed in their order, as prefill chunks are: a token reads what the pieces before
    its own have written. A piece may be begun again: until its tokens are kept (`RankRunner.keep`,
    behind which nothing is allocated) it writes what it would write the second time, and reads
    nothing of that. No row is chosen for in one piece and awaited in a later one: only the last
    token of a row is awaited, and only with guesses, which follow known tokens, has a row a sample
    before its last token.
    """

    step: RunStep
    points: Sequence[SamplePoint]  # [num_samples]
    adapters: Sequence[Adapter | None]  # [num_rows]
    images: Sequence[ImageSpan] = ()
    is_part: bool = False  # other pieces of the step are computed before it is collected
    states: StatePlan | None = None  # set: what it has begun it cannot begin again

    @property
    def num_tokens(self) -> int:
        return self.step.plan.num_tokens

    def halves(self) -> tuple[Self, Self] | None:
        """None of a single token. Both bring the page table's changes: the first may fail again."""
        plan = self.step.plan
        if plan.num_tokens == 1:
            return None
        middle = plan.num_tokens // 2
        first, second = plan.part(0, middle), plan.part(middle, plan.num_tokens)
        return (
            type(self)(
                msgspec.structs.replace(self.step, plan=first),
                self.points[: first.num_samples],
                self.adapters[: len(first.rows)],
                cut_spans(self.images, 0, middle),
                is_part=True,
            ),
            type(self)(
                msgspec.structs.replace(self.step, plan=second),
                self.points[first.num_samples :],
                self.adapters[-len(second.rows) :],
                cut_spans(self.images, middle, plan.num_tokens),
                is_part=True,
            ),
        )


@dataclass(slots=True, eq=False)
class _Choice:
    """Rows that a token is chosen for, and host memory for it: filled at the step's moment."""

    points: Sequence[SamplePoint]
    sample_rows: Ints  # of the page table, as many
    token_ids: torch.Tensor | None = None  # [num_samples] int64
    logprobs: DeviceLogprobs | None = None

    @property
    def chosen(self) -> list[int]:
        token_ids: list[int] = [] if self.token_ids is None else self.token_ids.tolist()
        return token_ids

    def records(self, token_ids: list[int]) -> list[bytes]:
        """The records of logprobs, one a token; b"" where none is asked for."""
        records = {} if self.logprobs is None else self.logprobs.records(token_ids)
        return [
            records.get(row, b"") if token_id >= 0 else b""
            for row, token_id in enumerate(token_ids)
        ]


@dataclass(slots=True, eq=False)
class _PieceOutput:
    """What a piece gives: host memory that is filled when the step's moment has come."""

    piece: StepPiece
    choices: Sequence[_Choice] = ()
    logits: torch.Tensor | None = None  # [num_samples, vocab_size] on the device, until it chooses
    hidden: torch.Tensor | None = None  # [num_tokens, hidden_size], for those who read it


class _LateRows(NamedTuple):
    """Samples [begin, end) of a piece that has not chosen."""

    output: _PieceOutput
    begin: int
    end: int

    def halves(self) -> tuple[_LateRows, _LateRows] | None:
        middle = (self.begin + self.end) // 2
        if middle == self.begin:
            return None
        return self._replace(end=middle), self._replace(begin=middle)


class GpuRunner:
    """Never waits for the GPU when it launches: what the next step needs of it stays there."""

    def __init__(
        self,
        device: GpuDevice,
        rank: RankRunner,
        page_table: DevicePageTable,
        page_size: int,
        sampler: GpuSampler,
        sampling: StepSampling,
        followers: Followers | None = None,
        image_encoder: ImageEncoder | None = None,
    ) -> None:
        self._device = device
        self._rank = rank
        self._page_table = page_table
        self._page_size = page_size
        self._sampler = sampler
        self._sampling = sampling
        self._followers = followers
        self._image_encoder = image_encoder
        self._pooler = Pooler()

    def launch(self, batch: ScheduleBatch) -> StepHandle:
        plan = StepPlan.of(batch)
        max_pages = -(-int(plan.seq_lens.max()) // self._page_size)
        reads_hidden = any(
            entry.req.pooling is not None or entry.req.num_prompt_top is not None
            for entry in batch.others
        )
        updates = self._page_table.updates()
        adapters = [entry.req.adapter for entry in batch.entries]
        numbers = NO_ROWS if self._followers is None else adapter_numbers(adapters)
        step = RunStep(plan, max_pages, updates, reads_hidden, batch.chooses_late, numbers)
        images, states = image_spans(batch), self._rank.plan_states(batch)
        piece = StepPiece(step, batch.sample_points, adapters, images, states=states)
        self._send(step)
        whole = self._compute(piece)
        pieces = [whole] if whole is not None else self._compute_halved(piece)
        num_fitting = None if whole is not None else max(each.piece.num_tokens for each in pieces)
        return _GpuStep(self, self._device.mark(), batch, pieces, num_fitting)

    def choose_late(self, pieces: Sequence[_PieceOutput]) -> Moment:
        """Chooses for a step that chooses late, and in pieces where memory is short."""
        for output in pieces:
            if num_samples := len(output.piece.points):
                rows = _LateRows(output, 0, num_samples)
                output.choices = compute_halved(rows, self._choose_rows, _LateRows.halves)
                self._device.enqueue(partial(setattr, output, "logits", None))
        return self._device.mark()

    @torch.inference_mode()
    def pooled(self, batch: ScheduleBatch, hidden: torch.Tensor) -> StepResult:
        """Without tokens: what is made of hidden states on the host."""
        return StepResult(
            [],
            (),
            score_prompts(self._host_logits, hidden, batch),
            self._pooler.forward(hidden, batch, self._host_logits),
        )

    def _compute_halved(self, piece: StepPiece) -> list[_PieceOutput]:
        """The whole once more, in the memory that was given back; then its halves."""
        return compute_halved(piece, self._compute, StepPiece.halves)

    def _compute(self, piece: StepPiece) -> _PieceOutput | None:
        """None: the GPU has no memory for it now."""
        step, plan, output = piece.step, piece.step.plan, _PieceOutput(piece)
        sampling: SamplingBatch | None = None
        if piece.points and not step.chooses_late:
            sampling = self._sampling.batch(piece.points)
            choice = _Choice(piece.points, plan.sample_rows)
            output.choices = (choice,)
        loras = lora_batch(piece.adapters, plan.query_lens)

        @torch.inference_mode()
        def work() -> None:
            hidden, logits, draw = self._rank.compute(
                step, self._image_rows(piece), loras, piece.states
            )
            if step.reads_hidden:
                assert hidden is not None, "it runs in no graph that gives logits alone"
                output.hidden = download(self._device, hidden)
            if logits is None:
                return
            if sampling is not None:
                self._choose(logits, sampling, choice, draw)
            else:  # of a graph, which the piece behind it may use
                output.logits = logits.clone() if piece.is_part else logits

        if piece.states is not None:  # without memory for it the engine ends
            self._device.enqueue(work)
            return output
        return output if self._has_memory(work) else None

    def _image_rows(self, piece: StepPiece) -> Sequence[ImageRows]:
        """Part of enqueued work."""
        if not piece.images:
            return ()
        assert self._image_encoder is not None, "the model takes no images"
        return self._image_encoder.rows(piece.images)

    def _has_memory(self, work: Work) -> bool:
        """Other ranks would wait in the middle of it: with them the engine ends."""
        if self._followers is None:
            return has_memory(self._device, work)
        self._device.enqueue(work)
        return True

    def _send(self, order: RankOrder) -> None:
        if self._followers is not None:
            self._followers.send(order)

    def _choose_rows(self, rows: _LateRows) -> _Choice | None:
        """None: the GPU has no memory for it now."""
        piece = rows.output.piece
        of_rows = slice(rows.begin, rows.end)
        choice = _Choice(piece.points[of_rows], piece.step.plan.sample_rows[of_rows])
        sampling = self._sampling.batch(choice.points)
        self._send(KeepTokens(choice.sample_rows))

        @torch.inference_mode()
        def work() -> None:
            assert rows.output.logits is not None, "the piece has samples"
            # A copy, since what fails halfway is done again.
            self._choose(rows.output.logits[of_rows].clone(), sampling, choice)

        return choice if self._has_memory(work) else None

    def _choose(
        self,
        logits: torch.Tensor,
        sampling: SamplingBatch,
        choice: _Choice,
        draw: DrawCaptured | None = None,
    ) -> None:
        """Part of enqueued work; `logits` are overwritten."""
        samples = self._sampler.forward(logits, sampling, draw)
        if not samples.are_kept:
            self._rank.keep(samples.token_ids, choice.sample_rows)
        choice.token_ids = download(self._device, samples.token_ids)
        choice.logprobs = samples.logprobs

    @torch.inference_mode()
    def _host_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of rows on the host, where they stay: for prompts that are scored."""
        if self._rank.shares_head:
            self._send(RunHead(len(hidden)))
        parts = compute_halved(hidden, self._head, _halves)
        self._device.mark().wait()
        return torch.cat([logits for part in parts for logits in part])

    def _head(self, hidden: torch.Tensor) -> list[torch.Tensor] | None:
        """What is put into it when it is done. None: the GPU has no memory for it now."""
        result: list[torch.Tensor] = []

        def work() -> None:
            rows = upload_tensor(self._device, hidden)
            result.append(download(self._device, self._rank.head(rows)))

        return result if self._has_memory(work) else None


def _halves(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    middle = len(rows) // 2
    return (rows[:middle], rows[middle:]) if middle else None


@dataclass(slots=True, eq=False)
class _GpuStep:
    """The handle of a launched step."""

    runner: GpuRunner
    moment: Moment
    batch: ScheduleBatch
    pieces: list[_PieceOutput]
    num_fitting: int | None

    def choose(self) -> None:
        self.moment = self.runner.choose_late(self.pieces)

    def collect(self) -> StepResult:
        self.moment.wait()
        chosen: list[int | SampleError] = []
        logprobs: list[bytes] = []
        choices = [choice for piece in self.pieces for choice in piece.choices]
        asks_logprobs = any(choice.logprobs is not None for choice in choices)
        for choice in choices:
            token_ids = choice.chosen
            chosen += [_ERRORS.get(token_id, token_id) for token_id in token_ids]
            if asks_logprobs:
                logprobs += choice.records(token_ids)
        hidden = self._hidden()
        result = StepResult([]) if hidden is None else self.runner.pooled(self.batch, hidden)
        return replace(result, token_ids=chosen, logprobs=logprobs, num_fitting=self.num_fitting)

    def _hidden(self) -> torch.Tensor | None:
        """[num_tokens, hidden_size], for those who read it."""
        parts = [piece.hidden for piece in self.pieces if piece.hidden is not None]
        return torch.cat(parts) if parts else None
