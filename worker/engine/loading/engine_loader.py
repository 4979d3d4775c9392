"""Builds an engine from its configuration: model, memory, scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from shared.errors import ConfigError
from shared.machine.host_limits import num_usable_cores
from shared.protocol.sampling import PoolingParams, SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.cache.state_snapshots import StateSnapshots
from worker.engine.cuda.cuda_device import CudaDevice, gpu_obstacle, has_gpu, num_gpus
from worker.engine.cuda.kv.kv_dtype import check_kv_dtype
from worker.engine.device.dtype_name import dtype_name
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.gpu_dtype import check_dtype, computes_bfloat16
from worker.engine.device.gpu_memory import FreeMemory, memory_for
from worker.engine.device.host_device import HostDevice, LateHostDevice
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.grammar.grammar_queue import GrammarQueue
from worker.engine.grammar.llguidance_backend import MIN_PARALLEL_CORES, LLGuidanceBackend
from worker.engine.loading.cpu_loader import CpuLoader
from worker.engine.loading.encoder_loader import EncoderLoader
from worker.engine.loading.gpu_loader import GpuLoader, RankLoader
from worker.engine.loading.hearing_loader import HearingLoader
from worker.engine.loading.load_progress import LoadPhases, LoadProgress
from worker.engine.loading.model_loader import LoadedModel, LoadSite, ModelLoader, OutsidePool
from worker.engine.loading.packed_loading import check_packed
from worker.engine.loading.stored_weights import remark_on_stored_weights, weights_format
from worker.engine.loading.tier_loading import refuse_tier
from worker.engine.loop.command_loop import CommandLoop
from worker.engine.loop.engine import Engine, ReqParts
from worker.engine.loop.step_budget import StepBudget, StepTargets
from worker.engine.loop.step_pipeline import StepPipeline
from worker.engine.loop.step_profiler import StepProfiler
from worker.engine.lora.adapter_pool import AdapterPool
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_setup import ModelSetup
from worker.engine.models.registry import read_model_config
from worker.engine.native.native_choice import has_fast_bfloat16
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.req_embeds import EmbedsRule
from worker.engine.request.req_image import Eyes
from worker.engine.request.step_limits import StepLimits
from worker.engine.request.step_result import BatchRunner
from worker.engine.request.stop_check import StopCheck
from worker.engine.request.token_functions import TokenFunctions
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.schedule.scheduler import Scheduler, ScheduleRules
from worker.engine.schedule.tier_ledger import TierLedger
from worker.engine.speculation.drafter import Drafter
from worker.engine.speculation.drafters import make_drafter
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import AddRequest, EngineReady, RunOptions

MAX_PARAMETERS_OF_ONE_THREAD = 20_000_000  # below, steps are too short to be shared

MakeLoader: TypeAlias = Callable[[LoadSite], ModelLoader]
# The first one that suits a model loads it.
LOADERS: Sequence[MakeLoader] = (
    HearingLoader,
    RankLoader,
    EncoderLoader,
    GpuLoader,
    CpuLoader,
)


class EngineLoader:
    """Loads step by step, and tells how far it is. Every failure is a ConfigError."""

    def __init__(
        self,
        config: EngineConfig,
        channel: EngineChannel,
        phases: LoadPhases | None = None,
        gpu: GpuDevice | None = None,  # in the place of this machine's
    ) -> None:
        config.check()
        self._gpu = _choose_gpu(config, gpu)
        check_kv_dtype(config.kv_dtype, self._gpu)
        self._on_gpu = self._gpu is not None and config.device != "cpu"
        check_dtype(config.dtype, self._gpu)
        self._step = StepLimits.of(config, on_gpu=self._on_gpu)
        self._functions = TokenFunctions.load(config.logits_processors)
        self._config = config
        self._channel = channel
        self._progress = LoadProgress(channel, phases or LoadPhases())

    def load(self) -> CommandLoop:
        with memory_for(
            "an engine beside what is there",
            "a smaller gpu_memory_utilization or num_kv_tokens leaves room",
        ):
            return self._load()

    def _load(self) -> CommandLoop:
        self._progress.enter("read configuration")
        model_config = read_model_config(
            Path(self._config.model_path),
            self._config.quantization,
            on_gpu=self._gpu is not None,
        ).within(self._config.max_context_len)
        torch.set_num_threads(
            self._config.num_threads or _default_num_threads(model_config, self._config)
        )
        is_fast = (
            computes_bfloat16(self._gpu)
            if self._gpu is not None and self._on_gpu
            else has_fast_bfloat16(self._config, model_config)
        )
        setup = ModelSetup.choose(self._config, model_config, is_fast=is_fast)
        grammars = self._make_grammars(model_config)
        with torch.inference_mode():
            loaded = self._loader(model_config).load(setup, grammars)
        budget = StepBudget(
            self._step.max_step_tokens,
            self._step.max_running,
            StepTargets(self._config.max_step_s, self._target_itl_s(), self._config.target_ttft_s),
        )
        self._progress.enter("warm up", 1.0)
        num_warm_up_tokens = min(
            setup.max_context_len, self._step.max_step_tokens, loaded.pool.num_tokens
        )
        one_token_step_s = _warm_up(
            *self._make_books(setup, loaded), budget, num_warm_up_tokens, loaded.pooling
        )
        one_token_step_s = max(one_token_step_s, loaded.min_step_s)
        engine = self._make_engine(setup, loaded, budget, grammars)
        folder = self._config.profile_dir
        return CommandLoop(
            self._channel,
            engine,
            self._ready(setup, loaded, one_token_step_s),
            None if folder is None else StepProfiler(Path(folder).expanduser()),
        )

    def _make_engine(
        self,
        setup: ModelSetup,
        loaded: LoadedModel,
        budget: StepBudget,
        grammars: GrammarBackend,
    ) -> Engine:
        scheduler, runner = self._make_books(setup, loaded, loaded.outside)
        return Engine(
            scheduler,
            StepPipeline(scheduler, runner, self._num_in_flight()),
            budget,
            StopCheck(setup.config.eos_token_ids, setup.max_context_len),
            GrammarQueue(grammars, self._config.grammar_timeout_s),
            ReqParts(
                AdapterPool(
                    loaded.make_projections,
                    setup.dtype,
                    self._config.max_loras,
                    self._config.max_lora_rank,
                ),
                Eyes(setup.config.sight, setup.config.sound, loaded.no_images),
                EmbedsRule(setup.config.hidden_size, loaded.no_embeds),
                loaded.tells_hidden,
                self._functions,
                loaded.ears,
            ),
            FreeMemory(self._gpu) if self._gpu is not None and self._on_gpu else None,
            loaded.release_cache,
        )

    def _target_itl_s(self) -> float | None:
        """What a step may take: each set of requests has one in so many."""
        target_s = self._config.target_itl_s
        return None if target_s is None else target_s / self._config.pp

    def _num_in_flight(self) -> int:
        """Steps that are launched before the one before them is done."""
        if self._config.pp > 1:
            return self._config.pp - 1
        return int(self._step.has_overlap)

    def _loader(self, model_config: ModelConfig) -> ModelLoader:
        site = LoadSite(self._config, self._step, self._gpu, self._progress)
        loader = next(each for make in LOADERS if (each := make(site)).suits(model_config))
        if not isinstance(loader, CpuLoader):
            check_packed(self._config, is_native=False)
            if self._config.cpu_activations == "int8":
                raise ConfigError(
                    "cpu_activations=int8 is for models that make tokens, on a CPU with tp=1"
                )
            refuse_tier(self._config)
            if self._config.guesses_with_pages:
                raise ConfigError(
                    f"{self._config.guesses_by} is for models that make tokens, on a CPU with "
                    "tp=1; leave it out"
                )
        return loader

    def _make_grammars(self, model_config: ModelConfig) -> GrammarBackend:
        num_cores = num_usable_cores()
        return LLGuidanceBackend(
            Path(self._config.model_path),
            model_config.vocab_size,
            model_config.eos_token_ids,
            num_cores if num_cores >= MIN_PARALLEL_CORES else 1,
        )

    def _make_books(
        self, setup: ModelSetup, loaded: LoadedModel, outside: OutsidePool | None = None
    ) -> tuple[Scheduler, BatchRunner]:
        """A scheduler with empty books, and the runner that reads them."""
        max_running, num_snapshots = self._step.max_running, loaded.num_snapshots
        ledger = KVLedger(
            loaded.pool.num_pages,
            loaded.pool.page_size,
            max_running,
            setup.max_context_len,
            self._config.max_pinned_share,
            snapshots=None if num_snapshots is None else StateSnapshots(num_snapshots),
            windows=loaded.window_pages(),
        )
        return (
            Scheduler(
                ledger,
                max_running,
                setup.max_context_len,
                setup.config.vocab_size,
                ScheduleRules(
                    self._config.schedule_policy, self._config.priority_aging_s, self._config.pp
                ),
                self._make_drafter(loaded, ledger),
                None if outside is None else self._tier_ledger(outside, ledger),
            ),
            loaded.make_runner(ledger.page_tables),
        )

    def _tier_ledger(self, outside: OutsidePool, ledger: KVLedger) -> TierLedger:
        """Whoever hands its requests on writes pages before others look for them."""
        writes_through = self._config.role == "prefill"
        return TierLedger(
            outside.tier,
            outside.memory,
            ledger,
            transfer=outside.transfer,
            writes_through=writes_through,
        )

    def _make_drafter(self, loaded: LoadedModel, ledger: KVLedger) -> Drafter | None:
        model = None if loaded.make_drafter is None else loaded.make_drafter(ledger)
        return make_drafter(self._config, model, can_drop_tokens=not loaded.keeps_states)

    def _ready(
        self, setup: ModelSetup, loaded: LoadedModel, one_token_step_s: float
    ) -> EngineReady:
        pool = loaded.pool
        return EngineReady(
            max_context_len=setup.max_context_len,
            vocab_size=setup.config.vocab_size,
            max_running=self._step.max_running,
            num_kv_tokens=pool.num_tokens,
            max_step_tokens=self._step.max_step_tokens,
            one_token_step_s=one_token_step_s,
            num_pinnable_tokens=self._num_pinnable_tokens(loaded),
            startup_s=self._progress.end(),
            remark="; ".join(
                filter(
                    None,
                    (loaded.remark, loaded.no_images, self._remark_on_weights(setup, loaded)),
                )
            ),
            gpu=loaded.gpu if self._on_gpu else None,
            kernel_set=loaded.kernel_set,
            weights=weights_format(setup.config, setup.dtype),
            dtype=dtype_name(setup.dtype),
            has_prefixes=loaded.has_prefixes,
            takes_no_images=bool(loaded.no_images),
            takes_no_embeds=bool(loaded.no_embeds),
            tells_no_hidden=not loaded.tells_hidden,
            num_packed_failures=loaded.num_packed_failures,
            num_snapshot_slots=loaded.num_snapshots or 0,
            can_release_cache=loaded.release_cache is not None,
            keeps_kv=bool(setup.config.attention_layers),
            pages="" if loaded.outside is None else loaded.outside.tier.place,
        )

    def _num_pinnable_tokens(self, loaded: LoadedModel) -> int:
        if not loaded.has_prefixes:
            return 0
        return int(loaded.pool.num_pages * self._config.max_pinned_share) * loaded.pool.page_size

    def _remark_on_weights(self, setup: ModelSetup, loaded: LoadedModel) -> str:
        if self._config.load_format == "dummy":
            return ""
        path = Path(self._config.model_path)
        told = remark_on_stored_weights(path, setup.config, setup.dtype, loaded.coded_share)
        if not told or not loaded.num_weight_bytes:
            return told
        return f"{told}; all weights take {loaded.num_weight_bytes / (1 << 30):.2f} GiB of memory"


def _warm_up(
    scheduler: Scheduler,
    runner: BatchRunner,
    budget: StepBudget,
    num_tokens: int,
    pooling: PoolingParams | None,
) -> float:
    """A full prefill, and one step of decoding if there is any, with books that are thrown away.

    Returns how long the last step took, in seconds.
    """
    elapsed_s = 0.0
    prompt_ids = pack_token_ids([0] * max(1, num_tokens - 2))
    options = RunOptions(sampling=SamplingParams(max_tokens=2, seed=0), pooling=pooling)
    arrival = Arrival(AddRequest(run_id=0, prompt_ids=prompt_ids, options=options), 0)
    scheduler.add(Req(arrival, StopCheck((), num_tokens)))
    while (batch := scheduler.next_batch(budget.num_tokens)) is not None:
        begin = time.monotonic()
        result = runner.launch(batch).collect()
        scheduler.process(batch, result)
        elapsed_s = time.monotonic() - begin
        budget.on_step(batch.size, elapsed_s)
        if result.num_fitting is not None:
            budget.on_shortage(result.num_fitting)
    return elapsed_s


def _default_num_threads(model_config: ModelConfig, config: EngineConfig) -> int:
    is_small = model_config.num_parameters < MAX_PARAMETERS_OF_ONE_THREAD
    return 1 if is_small else max(1, num_usable_cores() // config.num_local_ranks)


def _host_of_ranks(config: EngineConfig) -> GpuDevice | None:
    """None where it is not shared. The last stage has others in flight while it waits for one."""
    if config.pp > 1:
        return LateHostDevice()
    return HostDevice() if config.tp > 1 else None


def _choose_gpu(config: EngineConfig, given: GpuDevice | None) -> GpuDevice | None:
    """None for the CPU, which several ranks take for a GPU. Raises ConfigError when it must be one
    and there is none, when there is one that torch cannot use, or there are fewer than ranks.
    """
    if config.device == "cpu":
        return _host_of_ranks(config)
    if given is not None:
        return given
    if config.device == "cuda" and not has_gpu():
        why = gpu_obstacle() or "torch finds no NVIDIA GPU"
        raise ConfigError(f"device=cuda is not possible: {why}")
    if config.num_ranks > 1 and num_gpus() < config.num_local_ranks:
        shared = "" if config.nnodes == 1 else f" with nnodes={config.nnodes}"
        raise ConfigError(
            f"{config.divided_by}{shared} needs {config.num_local_ranks} NVIDIA GPUs, torch finds "
            f"{num_gpus()}; with device=cpu it can be tried without"
        )
    if has_gpu():
        return CudaDevice()
    if (obstacle := gpu_obstacle()) is not None:
        raise ConfigError(obstacle)
    return None
