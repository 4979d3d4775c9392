"""Runs planned steps on a GPU: staged and launched now, collected when they are done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from worker.engine.cuda.device_logprobs import DeviceLogprobs
from worker.engine.cuda.device_page_table import DevicePageTable
from worker.engine.cuda.draws import NOT_A_NUMBER, NOTHING_ALLOWED
from worker.engine.cuda.followers import Followers
from worker.engine.cuda.gpu_device import GpuDevice, Moment, download, upload_tensor
from worker.engine.cuda.gpu_sampler import GpuSampler
from worker.engine.cuda.rank_orders import RankOrder, RunHead, RunStep
from worker.engine.cuda.rank_runner import RankRunner
from worker.engine.cuda.step_plan import StepPlan
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.lora.lora_adapter import lora_batch
from worker.engine.pooler import Pooler
from worker.engine.sampling.prompt_scores import score_prompts
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
    """Never waits for the GPU when it launches: what the next step needs of it stays there."""

    def __init__(
        self,
        device: GpuDevice,
        rank: RankRunner,
        page_table: DevicePageTable,
        page_size: int,
        sampler: GpuSampler,
        num_outputs: int,
        grammars: GrammarBackend | None = None,
        followers: Followers | None = None,
    ) -> None:
        self._device = device
        self._rank = rank
        self._page_table = page_table
        self._page_size = page_size
        self._sampler = sampler
        self._num_outputs = num_outputs
        self._grammars = grammars
        self._followers = followers
        self._pooler = Pooler()
        self._row_params = RowParams.of([])

    def launch(self, batch: ScheduleBatch) -> StepHandle:
        plan = StepPlan.of(batch)
        max_pages = -(-int(plan.seq_lens.max()) // self._page_size)
        step = RunStep(plan, max_pages, self._page_table.updates())
        sampling = self._sampling(batch)
        loras = lora_batch([entry.req.adapter for entry in batch.entries], plan.query_lens)
        reads_hidden = any(
            entry.req.pooling is not None or entry.req.num_prompt_top is not None
            for entry in batch.others
        )
        output = _StepOutput()

        @torch.inference_mode()
        def work() -> None:
            hidden, logits = self._rank.compute(step, loras)
            if reads_hidden and hidden is not None:
                output.hidden = download(self._device, hidden)
            if logits is not None and sampling is not None:
                self._choose(logits, sampling, plan, output)

        self._tell(step)
        self._device.enqueue(work)
        return _GpuStep(self._device.mark(), batch, output, self._pooler, self._host_logits)

    def _tell(self, order: RankOrder) -> None:
        if self._followers is not None:
            self._followers.tell(order)

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
        self._rank.keep(samples.token_ids, plan)
        output.token_ids = download(self._device, samples.token_ids)
        output.logprobs = samples.logprobs

    @torch.inference_mode()
    def _host_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of rows on the host, to the host: for prompts that are scored, behind their step."""
        result: list[torch.Tensor] = []

        def work() -> None:
            rows = upload_tensor(self._device, hidden)
            result.append(download(self._device, self._rank.head(rows)))

        self._tell(RunHead(len(hidden)))
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
            score_prompts(self.host_logits, output.hidden, self.batch),
            self.pooler.forward(output.hidden, self.batch, self.host_logits),
        )
