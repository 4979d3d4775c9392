"""Runs planned steps on a GPU: staged and launched now, collected when they are done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from worker.engine.cuda.decode_graphs import NUM_COLUMNS, DecodeGraphs
from worker.engine.cuda.device_logprobs import DeviceLogprobs
from worker.engine.cuda.device_page_table import DevicePageTable
from worker.engine.cuda.draws import NOT_A_NUMBER, NOTHING_ALLOWED
from worker.engine.cuda.gpu_batch import GpuBatch
from worker.engine.cuda.gpu_device import GpuDevice, Moment, download, upload
from worker.engine.cuda.gpu_forward import GpuForward
from worker.engine.cuda.gpu_sampler import GpuSampler
from worker.engine.cuda.query_blocks import BLOCK_QUERIES, QueryBlocks, cut_queries
from worker.engine.cuda.step_plan import Ints, StepPlan
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.lora.lora_adapter import lora_batch
from worker.engine.pooler import Pooler
from worker.engine.sampling.prompt_scores import score_prompt
from worker.engine.sampling.row_params import RowParams
from worker.engine.sampling.sample_error import SampleError
from worker.engine.sampling.sampling_batch import SamplingBatch
from worker.engine.schedule_batch import ScheduleBatch
from worker.engine.step_result import StepHandle, StepResult

_ERRORS = {
    NOT_A_NUMBER: SampleError.NOT_A_NUMBER,
    NOTHING_ALLOWED: SampleError.NOTHING_ALLOWED,
}

Logits = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True, eq=False)
class _StepOutput:
    """Host memory that is filled when the step's moment has come."""

    token_ids: torch.Tensor | None = None  # [num_samples] int64
    logprobs: DeviceLogprobs | None = None
    hidden: torch.Tensor | None = None  # [num_tokens, hidden_size], for those who read it


class GpuRunner:
    """Never waits for the GPU when it launches: what the next step needs of this one stays there.

    The token that a request chose last lies in `last_token_ids`, by its row of the page table: the
    input of a step that was planned before the host knew it.
    """

    def __init__(
        self,
        device: GpuDevice,
        forward: GpuForward,
        page_table: DevicePageTable,
        last_token_ids: torch.Tensor,  # [num_table_rows] int64
        graphs: DecodeGraphs,
        sampler: GpuSampler,
        num_outputs: int,
        grammars: GrammarBackend | None = None,
    ) -> None:
        self._device = device
        self._forward = forward
        self._page_table = page_table
        self._last_token_ids = last_token_ids
        self._graphs = graphs
        self._sampler = sampler
        self._num_outputs = num_outputs
        self._grammars = grammars
        self._pooler = Pooler()
        self._row_params = RowParams.of([])

    def launch(self, batch: ScheduleBatch) -> StepHandle:
        plan = StepPlan.of(batch)
        max_pages = -(-int(plan.seq_lens.max()) // self._forward.page_size)
        updates = self._page_table.updates(plan.rows, max_pages)
        sampling = self._sampling(batch)
        loras = lora_batch([entry.req.adapter for entry in batch.entries], plan.query_lens)
        reads_hidden = any(
            entry.req.pooling is not None or entry.req.num_prompt_top is not None
            for entry in batch.others
        )
        output = _StepOutput()

        @torch.inference_mode()
        def work() -> None:
            if updates.shape[1]:
                self._page_table.apply(upload(self._device, updates))
            if plan.is_decode and loras is None and self._graphs.has_room(len(plan.rows)):
                logits = self._graphs.run(upload(self._device, _columns(plan)))
            else:
                gpu_batch = self._gpu_batch(plan, max_pages)
                if loras is not None:
                    loras.move_to(self._device.torch_device)
                    gpu_batch = gpu_batch.with_loras(loras)
                hidden = self._forward.hidden(gpu_batch)
                if reads_hidden:
                    output.hidden = download(self._device, hidden)
                if sampling is None:
                    return
                sample_idx = upload(self._device, plan.sample_idx)
                logits = self._forward.logits(hidden[sample_idx])
            if sampling is not None:
                self._choose(logits, sampling, plan, output)

        self._device.enqueue(work)
        return _GpuStep(self._device.mark(), batch, output, self._pooler, self._host_logits)

    def _sampling(self, batch: ScheduleBatch) -> SamplingBatch | None:
        points = batch.sample_points
        if not points:
            return None
        reqs = [point.req for point in points]
        if reqs != self._row_params.reqs:
            self._row_params = RowParams.of(reqs)
        return SamplingBatch.from_points(
            points, self._num_outputs, self._grammars, self._row_params
        )

    def _choose(
        self, logits: torch.Tensor, sampling: SamplingBatch, plan: StepPlan, output: _StepOutput
    ) -> None:
        samples = self._sampler.forward(logits, sampling)
        rows = upload(self._device, plan.sample_rows)
        # Of a request with guesses the last one wins; nobody awaits it.
        self._last_token_ids[rows] = samples.token_ids.clamp(min=0)
        output.token_ids = download(self._device, samples.token_ids)
        output.logprobs = samples.logprobs

    def _gpu_batch(self, plan: StepPlan, max_pages: int) -> GpuBatch:
        """Of a step that is not a plain decode, or has no graph."""
        device, page_size = self._device, self._forward.page_size
        awaited = upload(device, plan.awaited_rows)
        input_ids = torch.where(
            awaited >= 0,
            self._last_token_ids[awaited.clamp(min=0)],
            upload(device, plan.input_ids),
        )
        positions = upload(device, plan.positions)
        own_pages = self._page_table.table[upload(device, plan.rows), :max_pages].contiguous()
        token_rows = upload(device, np.arange(len(plan.rows)).repeat(plan.query_lens))
        pages = own_pages[token_rows, positions // page_size]
        return GpuBatch(
            input_ids=input_ids,
            positions=positions,
            out_loc=pages.long() * page_size + positions % page_size,
            token_rows=token_rows,
            num_decode=plan.num_decode,
            seq_lens=upload(device, plan.seq_lens.astype(np.int32)),
            page_table=own_pages,
            blocks=self._blocks(plan),
        )

    def _blocks(self, plan: StepPlan) -> QueryBlocks | None:
        behind = slice(plan.num_decode, None)
        if plan.num_decode == len(plan.rows):
            return None
        starts = plan.query_lens.cumsum() - plan.query_lens
        table = cut_queries(
            range(plan.num_decode, len(plan.rows)),
            starts[behind].tolist(),
            plan.query_lens[behind].tolist(),
            plan.seq_lens[behind].tolist(),
            BLOCK_QUERIES,
        )
        return QueryBlocks(upload(self._device, table), BLOCK_QUERIES)

    @torch.inference_mode()
    def _host_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of rows on the host, to the host: for prompts that are scored, behind their step."""
        result: list[torch.Tensor] = []

        def work() -> None:
            rows = hidden.to(self._device.torch_device)
            result.append(download(self._device, self._forward.logits(rows)))

        self._device.enqueue(work)
        self._device.mark().wait()
        return result[0]


@dataclass(frozen=True, slots=True, eq=False)
class _GpuStep:
    """The handle of a launched step."""

    moment: Moment
    batch: ScheduleBatch
    output: _StepOutput
    pooler: Pooler
    host_logits: Logits

    @torch.inference_mode()
    def collect(self) -> StepResult:
        self.moment.wait()
        output = self.output
        token_ids: list[int] = [] if output.token_ids is None else output.token_ids.tolist()
        logprobs: list[bytes] = []
        if output.logprobs is not None:
            records = output.logprobs.records(token_ids)
            logprobs = [
                records.get(row, b"") if token_id >= 0 else b""
                for row, token_id in enumerate(token_ids)
            ]
        chosen = [_ERRORS.get(token_id, token_id) for token_id in token_ids]
        if output.hidden is None:
            return StepResult(chosen, logprobs)
        return StepResult(
            chosen,
            logprobs,
            self._prompt_logprobs(output.hidden),
            self.pooler.forward(output.hidden, self.batch, self.host_logits),
        )

    def _prompt_logprobs(self, hidden: torch.Tensor) -> dict[int, bytes | SampleError]:
        """Of the prompt chunks of those that want them, by run id."""
        records: dict[int, bytes | SampleError] = {}
        start = self.batch.num_plain
        for entry in self.batch.others:
            if entry.req.num_prompt_top is not None:
                rows = hidden[start : start + entry.num_tokens]
                records[entry.req.run_id] = score_prompt(self.host_logits, rows, entry)
            start += entry.num_tokens
        return records


def _columns(plan: StepPlan) -> Ints:
    """[NUM_COLUMNS, num_rows] int64, as decode_graphs.py names them."""
    columns = np.stack([plan.rows, plan.seq_lens, plan.input_ids, plan.awaited_rows])
    assert len(columns) == NUM_COLUMNS
    return columns
