"""One rank's part of a step: the page table, the model, and the tokens that were chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from worker.engine.cuda.batch.step_inputs import pack
from worker.engine.cuda.steps.gpu_state import GpuState
from worker.engine.cuda.steps.step_graphs import Computed, StepGraphs
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup
from worker.engine.cuda.tensor_parallel.rank_orders import RunStep
from worker.engine.cuda.tensor_parallel.stage_link import StageLink
from worker.engine.device.gpu_device import GpuDevice, upload
from worker.engine.lora.lora_adapter import LoraBatch
from worker.engine.models.model import ImageRows
from worker.engine.models.recurrent.state_cache import StateCache, StatePlan
from worker.engine.request.schedule_batch import ScheduleBatch
from worker.engine.request.token_ranges import Ints


class RankRunner:
    """The same on every rank, or on the only one. Methods are part of enqueued work.

    The token that a request chose last lies in `last_token_ids`, by its row of the page table: the
    input of a step that was planned before the host knew it.
    """

    def __init__(
        self,
        device: GpuDevice,
        state: GpuState,
        graphs: StepGraphs,
        group: RankGroup | None = None,  # None: no other one has a part of the same layers
        link: StageLink | None = None,  # None: no other one has other layers
    ) -> None:
        self._device = device
        self._forward = state.forward
        self._inputs = state.inputs
        self._states = state.states
        self._graphs = graphs
        self._group = group
        self._link = link

    @property
    def chooses(self) -> bool:
        """Whether tokens are chosen of what it computes."""
        return self._link is None or self._link.is_last

    @property
    def shares_head(self) -> bool:
        """Whether it takes other ranks to compute logits."""
        return self._group is not None

    def plan_states(self, batch: ScheduleBatch) -> StatePlan | None:
        """Before the step is enqueued. None: the model keeps no states."""
        return None if self._states is None else self._states.plan(batch)

    def compute(
        self,
        step: RunStep,
        image_rows: Sequence[ImageRows] = (),  # on the device
        loras: LoraBatch | None = None,
        states: StatePlan | None = None,
    ) -> Computed:
        plan = step.plan
        if step.page_updates.shape[1]:
            self._inputs.page_table.apply(upload(self._device, step.page_updates))
        if states is not None:
            self._of_states.prepare(states)
        computed = self._of_layers(step, image_rows, loras, states)
        hidden = computed.hidden
        if self._link is not None and not self._link.is_last:
            assert hidden is not None, "its graphs give nothing else"
            self._link.give(hidden)
            return Computed(None, None)
        if hidden is not None and plan.num_samples:
            logits = self._forward.logits(hidden[upload(self._device, plan.sample_idx)])
            return Computed(hidden, logits)
        return computed

    def _of_layers(
        self,
        step: RunStep,
        image_rows: Sequence[ImageRows],
        loras: LoraBatch | None,
        states: StatePlan | None,
    ) -> Computed:
        """Runs the layers in a graph, where one has room for the step."""
        plan, shape = step.plan, None
        stage_rows = None if self._link is None else self._link.take(plan.num_tokens)
        if loras is None and not image_rows:
            shape = self._graphs.shape_for(plan, reads_hidden=step.reads_hidden)
        if shape is None:
            return Computed(self._hidden(step, stage_rows, image_rows, loras, states), None)
        computed = self._graphs.run(plan, shape, stage_rows)
        if states is not None:
            self._of_states.keep_marked(states)
        return computed

    def keep(self, token_ids: torch.Tensor, sample_rows: Ints) -> None:
        """Those that samples of these rows chose, both [num_samples] int64: every rank gets rank
        0's.
        """
        if self._group is not None:
            self._group.share(token_ids)
        self._inputs.keep(token_ids, upload(self._device, sample_rows))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of rank 0's rows [num_rows, hidden_size]: [num_rows, num_outputs] float32."""
        if self._group is not None:
            self._group.share(hidden)
        return self._forward.logits(hidden)

    @property
    def _of_states(self) -> StateCache:
        assert self._states is not None, "the model keeps some"
        return self._states

    def _hidden(
        self,
        step: RunStep,
        stage_rows: torch.Tensor | None,
        image_rows: Sequence[ImageRows],
        loras: LoraBatch | None,
        states: StatePlan | None,
    ) -> torch.Tensor:
        """[num_tokens, hidden_size], without a graph."""
        plan = step.plan
        packed = upload(self._device, pack(plan))
        self._forward.plan(self._inputs.rows(plan, packed, in_graph=False))
        if loras is not None:
            loras = loras.moved(lambda rows: upload(self._device, rows.numpy()))
        batch = self._inputs.batch(packed, plan.shape, step.max_pages)
        return self._forward.hidden(
            dataclasses.replace(
                batch,
                stage_rows=stage_rows,
                image_rows=image_rows,
                loras=loras,
                states=None if states is None else self._of_states.states(states),
            )
        )
