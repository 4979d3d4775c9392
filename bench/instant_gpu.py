"""A GPU that takes no time: what remains of a step is what its host does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from worker.engine.cuda.batch.gpu_batch import GpuBatch, StepRows
from worker.engine.cuda.batch.key_splits import count_splits
from worker.engine.cuda.batch.step_inputs import StepInputs
from worker.engine.cuda.batch.step_plan import StepShape
from worker.engine.cuda.kv.device_page_table import DevicePageTable
from worker.engine.cuda.kv.gpu_kv_pool import GpuKVPool
from worker.engine.cuda.sampling.draws import DeviceParams
from worker.engine.cuda.sampling.gpu_sampler import GpuSampler
from worker.engine.cuda.steps.gpu_runner import GpuRunner
from worker.engine.cuda.steps.gpu_state import GpuForward, GpuState
from worker.engine.cuda.steps.rank_runner import RankRunner
from worker.engine.cuda.steps.step_graphs import StepGraphs
from worker.engine.device.gpu_device import Work
from worker.engine.device.host_device import HostDevice
from worker.engine.layers.attention_backend import AttentionLayer
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.lora.lora_projection import LoraProjection, LoraWeights
from worker.engine.models.model_config import ModelConfig
from worker.engine.sampling.sampling_batch import StepSampling
from worker.engine.schedule.kv_ledger import KVLedger

NUM_PROCESSORS = 132
MODEL = ModelConfig(
    architecture="Instant",
    vocab_size=1,
    hidden_size=1,
    num_parameters=0,
    attention_layers=(),
    max_context_len=1,
    max_context_limit=1,
    stored_dtype="float32",
    eos_token_ids=(),
)


class InstantDevice(HostDevice):
    """What is captured is not done again. Copies are: they take the host about as long as there."""

    num_processors = NUM_PROCESSORS

    def capture(self, work: Work) -> Work:
        return lambda: None


class InstantModel:
    """Hidden states and logits of nothing."""

    attention_layers: Sequence[AttentionLayer] = ()

    def hidden(self, batch: GpuBatch, attention: InstantAttention) -> torch.Tensor:
        return torch.empty((len(batch.input_ids), 1))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        return {}


class InstantAttention:
    """Plans as the Triton kernels do."""

    def __init__(self) -> None:
        self._splits = np.zeros(0, np.int64)

    def plan(self, rows: StepRows) -> None:
        splits = count_splits(rows.seq_lens[: rows.num_decode], NUM_PROCESSORS)
        if not np.array_equal(splits, self._splits):
            self._splits = splits

    def begin(self, batch: GpuBatch) -> None:
        pass


class InstantDraws:
    """One token for each row: never an end."""

    can_be_captured = True

    def draw(
        self, logits: torch.Tensor, params: DeviceParams, positions: torch.Tensor
    ) -> torch.Tensor:
        return torch.full_like(positions, 7)


def make_instant_gpu(ledger: KVLedger, vocab_size: int) -> GpuRunner:
    """With one graph, for all steps that decode."""
    device, rows, page_size = InstantDevice(), ledger.req_to_token, ledger.page_size
    num_rows = rows.num_rows
    page_table = DevicePageTable(num_rows, rows.max_pages, ledger.num_pages, device.torch_device)
    page_table.follow(rows)
    forward = GpuForward(InstantModel(), InstantAttention(), page_size)  # type: ignore[arg-type]
    inputs = StepInputs(page_table, torch.zeros(num_rows + 1, dtype=torch.int64), page_size)
    layout = KVLayout.of([AttentionLayer(1, 1, 1, 1.0)], torch.float32, page_size)
    pool = GpuKVPool(layout, 1, device.torch_device)
    state = GpuState(pool, inputs, forward, forward)
    shapes, draws = [StepShape.of_decode(num_rows)], InstantDraws()
    graphs = StepGraphs(device, state, MODEL, torch.float32, shapes, draws)
    return GpuRunner(
        device,
        RankRunner(device, state, graphs),
        page_table,
        page_size,
        GpuSampler(device, draws),
        StepSampling(vocab_size),
    )
