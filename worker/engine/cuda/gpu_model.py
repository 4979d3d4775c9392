"""A model on a GPU: room for keys and values, CUDA graphs, and what else its steps need."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from shared.errors import ConfigError, NotCapturable
from worker.engine.cache.page_allocator import num_empty_pages
from worker.engine.cache.req_to_token_pool import ReqToTokenPool
from worker.engine.cache.state_snapshots import num_snapshots
from worker.engine.cuda.attention.attention_choice import ChosenAttention
from worker.engine.cuda.batch.step_inputs import StepInputs, pack
from worker.engine.cuda.batch.step_plan import StepPlan, StepShape
from worker.engine.cuda.kv.device_page_table import DevicePageTable
from worker.engine.cuda.kv.kv_dtype import choose_kv_dtype
from worker.engine.cuda.sampling.draws import Draws, HostDraws, TritonDraws
from worker.engine.cuda.sampling.gpu_sampler import GpuSampler, most_demanding
from worker.engine.cuda.steps.gpu_runner import GpuRunner
from worker.engine.cuda.steps.gpu_state import GpuForward, GpuState
from worker.engine.cuda.steps.rank_runner import RankRunner
from worker.engine.cuda.steps.step_graphs import StepGraphs, graph_shapes, rehearse
from worker.engine.cuda.tensor_parallel.followers import Followers
from worker.engine.cuda.tensor_parallel.rank_group import RankGroup
from worker.engine.cuda.tensor_parallel.stage_link import StageLink
from worker.engine.device.gpu_card import gpu_card
from worker.engine.device.gpu_device import GpuDevice, upload, upload_tensor
from worker.engine.device.gpu_memory import memory_for
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.images import ImageEncoder
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.lora.lora_projection import LoraPair, LoraProjection, LoraWeights
from worker.engine.models.model import Model
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.recurrent.state_cache import MakeScans, StateCache, StatePlan
from worker.engine.request.step_limits import StepLimits
from worker.engine.sampling.sampling_batch import StepSampling
from worker.engine_link.engine_config import EngineConfig

log = logging.getLogger(__name__)


class GpuModel:
    """Made once: graphs are captured, and serve one scheduler after the other."""

    def __init__(
        self,
        config: EngineConfig,
        step: StepLimits,
        device: GpuDevice,
        model: Model,
        setup: ModelSetup,
        attention: ChosenAttention,
        group: RankGroup | None = None,
        image_encoder: ImageEncoder | None = None,  # None: it takes no images
    ) -> None:
        """Raises ConfigError when something has no room."""
        self._config = config
        self._step = step
        self._device = device
        self._model = model
        self._setup = setup
        self._layers = model.attention_layers
        kv_dtype = choose_kv_dtype(config.kv_dtype, setup.dtype)
        self._kv_layout = KVLayout.of(self._layers, kv_dtype, config.page_size)
        self._attention = attention
        self._image_encoder = image_encoder
        weight_bytes = device.held_bytes()
        self.num_snapshots: int | None = None  # None: no layer keeps a state
        with memory_for(
            f"the states of max_running={step.max_running} requests", "a smaller one takes less"
        ):
            self._states = self._make_states()
        most_pages = -(-setup.max_context_len // config.page_size)
        draft = self._make_state(1, most_pages)
        with memory_for(
            f"a step of max_step_tokens={step.max_step_tokens} beside the weights",
            "fewer, or a smaller max_running, take less",
        ):
            step_bytes = self._step_bytes(draft)
        self.remark = ""  # what its operator should know
        # Other ranks are told of a choice, and have a part in it.
        draws = self._make_draws()
        captured = draws if draws.can_be_captured and group is None else None
        with _memory_for_graphs():
            shapes, graph_bytes = self._rehearse(draft, captured)
        del draft
        num_pages = self._num_pages(step_bytes, graph_bytes)
        if group is not None:
            num_pages = group.least(num_pages, device.torch_device)
        with memory_for(
            f"{num_pages * config.page_size} tokens of keys and values",
            "a smaller num_kv_tokens, kv_memory_bytes or gpu_memory_utilization takes less",
        ):
            state = self._make_state(num_pages, min(num_pages, most_pages))
        self.pool, self._page_table = state.pool, state.inputs.page_table
        # A chunk of padding has no more positions than there are tokens.
        shapes = [shape for shape in shapes if shape.num_tokens <= self.pool.num_tokens]
        free_bytes = device.free_bytes()
        with _memory_for_graphs():
            graphs = StepGraphs(device, state, setup.config, setup.dtype, shapes, captured)
        self.card = gpu_card(
            device,
            setup.dtype,
            attention.name,
            weight_bytes,
            kv_dtype,
            config.tp,
            self.pool.num_bytes + (0 if self._states is None else self._states.num_bytes),
            free_bytes - device.free_bytes(),
        )
        self.rank_runner = self._make_rank_runner(state, graphs, group)

    def _make_rank_runner(
        self, state: GpuState, graphs: StepGraphs, group: RankGroup | None
    ) -> RankRunner:
        """Comes behind all else that ranks do in common before their first step."""
        stage = self._setup.config.stage
        if stage is None:
            return RankRunner(self._device, state, graphs, group)
        assert group is not None, "other ranks have the other stages"
        make = functools.partial(
            torch.empty, dtype=self._setup.dtype, device=self._device.torch_device
        )
        link = StageLink(group, stage, lambda num: make(num, 2, self._setup.config.hidden_size))
        return RankRunner(self._device, state, graphs, link=link)

    def make_runner(
        self,
        req_to_token: ReqToTokenPool,
        grammars: GrammarBackend,
        followers: Followers | None = None,
    ) -> GpuRunner:
        """A runner for the rows of one scheduler. The runner before has no steps left."""
        self._page_table.follow(req_to_token)
        return GpuRunner(
            self._device,
            self.rank_runner,
            self._page_table,
            self._config.page_size,
            GpuSampler(self._device, self._make_draws()),
            StepSampling(self._setup.config.num_outputs, grammars),
            followers,
            self._image_encoder,
        )

    def lora_projections(self, weights: LoraWeights) -> dict[str, LoraProjection]:
        """An adapter's, on the device. Raises ConfigError."""
        device = self._device.torch_device
        return self._model.lora_projections(
            {
                name: LoraPair(pair.down.to(device), pair.up.to(device))
                for name, pair in weights.items()
            }
        )

    def _make_state(self, num_pages: int, max_pages: int) -> GpuState:
        """Pool and buffers for so many pages, of which a row has at most `max_pages`."""
        device, max_running = self._device, self._step.max_running
        page_size = self._config.page_size
        pool, attention, mixed = self._attention.over(self._kv_layout, num_pages, self._layers)
        table = DevicePageTable(max_running, max_pages, num_pages, device.torch_device)
        last_token_ids = torch.zeros(max_running + 1, dtype=torch.int64, device=device.torch_device)
        return GpuState(
            pool,
            StepInputs(table, last_token_ids, page_size),
            GpuForward(self._model, attention, page_size),
            GpuForward(self._model, mixed, page_size),
            self._states,
        )

    def _make_states(self) -> StateCache | None:
        """A slot for each row, one for padding, and those of snapshots."""
        model, device, max_running = self._setup.config, self._device, self._step.max_running
        if not model.state_layers:
            return None
        num_rows = max_running + 1
        most_pages = max_running * -(-self._setup.max_context_len // self._config.page_size)
        running_bytes = num_rows * model.state_bytes
        self.num_snapshots = num_snapshots(
            self._config, model.state_bytes, most_pages, device.free_bytes(), running_bytes
        )
        return StateCache(
            model.state_layers,
            num_rows,
            self.num_snapshots,
            lambda shape, dtype: torch.zeros(*shape, dtype=dtype, device=device.torch_device),
            functools.partial(upload_tensor, device),
            self._make_scans(),
        )

    def _make_scans(self) -> MakeScans | None:
        if self._config.attention_backend == "torch":
            return None
        from worker.engine.cuda.kernels.scan_kernels import TritonScans

        return TritonScans

    def _rehearse(self, draft: GpuState, draws: Draws | None) -> tuple[Sequence[StepShape], int]:
        """Which graphs there will be, and their bytes: none, and a remark, where the model's code
        cannot be captured.
        """
        config, device, model_config = self._config, self._device, self._setup.config
        max_tokens = min(self._step.max_step_tokens, self._setup.max_context_len)
        num_layers = len(self._layers) + len(model_config.state_layers)
        layer_size = model_config.num_parameters / num_layers / config.tp
        shapes = graph_shapes(config, self._step.max_running, max_tokens, layer_size)
        if self._states is not None:  # what they look up is another for each step with prefill
            shapes = [shape for shape in shapes if shape.is_decode]
        capture = functools.partial(
            StepGraphs, device, draft, model_config, self._setup.dtype, draws=draws
        )
        try:
            return shapes, rehearse(device, capture, shapes)
        except NotCapturable as exc:
            wanted = ("cuda_graph_sizes", "cuda_graph_tokens")
            if named := [name for name in wanted if any(getattr(config, name))]:
                raise ConfigError(
                    f"{' and '.join(named)}: {model_config.architecture} cannot be captured "
                    f"({exc}); without, it runs without CUDA graphs"
                ) from exc
            self.remark = f"{model_config.architecture} runs without CUDA graphs: {exc}"
        log.warning(self.remark)
        return (), 0

    def _make_draws(self) -> Draws:
        if self._config.attention_backend == "torch":
            return HostDraws(self._setup.config.num_outputs)
        return TritonDraws()

    def _num_pages(self, step_bytes: int, graph_bytes: int) -> int:
        config = self._config
        page_bytes = config.page_size * self._kv_layout.bytes_per_token
        if not page_bytes:
            max_running, max_len = self._step.max_running, self._setup.max_context_len
            return num_empty_pages(config, max_running, max_len)
        if config.num_kv_tokens is not None:
            num_pages = config.num_kv_tokens // config.page_size
        elif config.kv_memory_bytes is not None:
            num_pages = config.kv_memory_bytes // page_bytes
        else:
            kept_free = int(self._device.total_bytes() * (1 - config.gpu_memory_utilization))
            room = self._device.free_bytes() - kept_free - step_bytes - graph_bytes
            num_pages = room // page_bytes - 1  # of padding
        if num_pages < 1:
            raise ConfigError(
                f"the GPU has no room for keys and values: {self._device.free_bytes() >> 20} MiB "
                f"are free beside the weights, a step takes {step_bytes >> 20} MiB and CUDA graphs "
                f"{graph_bytes >> 20} MiB; a larger gpu_memory_utilization or a smaller "
                "max_step_tokens leaves more"
            )
        return num_pages

    @torch.inference_mode()
    def _step_bytes(self, draft: GpuState) -> int:
        """What the largest step takes: a prefill of all its tokens, and all samples that it may
        have, each with a threshold and logprobs. It is run once.
        """
        device, step, encoder = self._device, self._step, self._image_encoder
        model = self._setup.config
        max_context_len = self._setup.max_context_len
        num_tokens = min(step.max_step_tokens, step.max_running * max_context_len)
        plan = StepPlan.prefill(num_tokens, max_context_len)
        sampler = GpuSampler(device, self._make_draws())

        @torch.inference_mode()
        def work() -> None:
            features = None if encoder is None else encoder.blank()
            packed = upload(device, pack(plan))
            draft.forward.plan(draft.inputs.rows(plan, packed, in_graph=False))
            batch = draft.inputs.batch(packed, plan.shape)
            if draft.states is not None:
                of_rows = StatePlan(plan.rows.tolist(), plan.query_lens.tolist())
                batch = dataclasses.replace(batch, states=draft.states.states(of_rows))
            if not model.begins_text:
                rows = torch.zeros(num_tokens, 2, model.hidden_size, dtype=self._setup.dtype)
                batch = dataclasses.replace(batch, stage_rows=rows.to(device.torch_device))
            hidden = draft.forward.hidden(batch)
            if not model.ends_text:
                return
            logits = draft.forward.logits(hidden[: step.max_running])
            # A step that chooses late keeps its logits until it has chosen.
            chosen_of = logits.clone() if step.has_overlap else logits
            sampler.forward(chosen_of, most_demanding(len(logits)))
            del features  # they are there beside all tokens

        return device.peak_bytes(work)


def _memory_for_graphs() -> AbstractContextManager[None]:
    return memory_for(
        "CUDA graphs",
        "a smaller gpu_memory_utilization, or fewer cuda_graph_sizes and cuda_graph_tokens, "
        "leaves room",
    )
