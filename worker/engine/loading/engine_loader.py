"""Builds an engine from its configuration: model, memory, scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from shared.errors import ConfigError
from shared.protocol.role_cards import LOAD_WEIGHTS, GpuCard
from shared.protocol.sampling import PoolingKind, PoolingParams, SamplingParams
from shared.protocol.token_ids import pack_token_ids
from worker.engine.cache.kv_size import num_kv_pages
from worker.engine.cache.req_to_token_pool import ReqToTokenPool
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.cpu.model_runner import ModelRunner
from worker.engine.cpu.torch_attention import TorchAttentionBackend
from worker.engine.cpu.torch_forward import TorchForward
from worker.engine.cuda.attention.attention_choice import choose_attention
from worker.engine.cuda.cuda_device import CudaDevice, has_gpu, num_gpus
from worker.engine.cuda.gpu_loading import load_gpu_model
from worker.engine.cuda.gpu_model import GpuModel
from worker.engine.cuda.kv.kv_dtype import check_kv_dtype
from worker.engine.cuda.tensor_parallel.followers import Followers
from worker.engine.cuda.tensor_parallel.rank_config import rank_config
from worker.engine.cuda.tensor_parallel.rank_weights import divide
from worker.engine.device.free_memory import FreeMemory
from worker.engine.device.gpu_card import gpu_card
from worker.engine.device.gpu_device import GpuDevice
from worker.engine.device.host_device import HostDevice
from worker.engine.device.host_limits import num_usable_cores
from worker.engine.device.memory_errors import memory_for
from worker.engine.encoder.encoder_model import load_encoder
from worker.engine.encoder.encoder_runner import EncoderRunner
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.grammar.grammar_queue import GrammarQueue
from worker.engine.grammar.llguidance_backend import MIN_PARALLEL_CORES, LLGuidanceBackend
from worker.engine.images.image_encoder import ImageEncoder
from worker.engine.loading import determinism
from worker.engine.loading.memory_check import check_memory
from worker.engine.loop.engine import Engine
from worker.engine.loop.step_budget import StepBudget
from worker.engine.lora.adapter_pool import AdapterPool, MakeProjections
from worker.engine.lora.lora_projection import LoraProjection
from worker.engine.lora.lora_weights import LoraWeights
from worker.engine.models.decoder_config import DecoderConfig
from worker.engine.models.dtype_choice import choose_dtype
from worker.engine.models.encoder_config import EncoderConfig
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_loading import load_model, open_weights
from worker.engine.models.registry import FUSED_ARCHITECTURES, read_model_config
from worker.engine.models.transformers_model import TransformersModel
from worker.engine.native.native_choice import choose_native_library
from worker.engine.native.native_forward import NativeForward
from worker.engine.native.native_weights import NativeWeights
from worker.engine.process.load_phases import LoadPhases
from worker.engine.request.arrival import Arrival
from worker.engine.request.req import Req
from worker.engine.request.step_limits import StepLimits
from worker.engine.request.step_result import BatchRunner
from worker.engine.request.stop_check import StopCheck
from worker.engine.schedule.kv_ledger import KVLedger
from worker.engine.schedule.scheduler import Scheduler
from worker.engine.speculation.ngram_drafter import NgramDrafter
from worker.engine_link.engine_channel import EngineChannel
from worker.engine_link.engine_config import EngineConfig
from worker.engine_link.engine_messages import (
    AddRequest,
    EngineLoading,
    EngineReady,
    RunOptions,
)

MAX_PARAMETERS_OF_ONE_THREAD = 20_000_000  # below, steps are too short to be shared
PROGRESS_GRAIN = 0.05


class KVSize(Protocol):
    """A pool of keys and values, as the books know it."""

    page_size: int
    num_pages: int
    num_tokens: int


class LoadedModel(NamedTuple):
    """A model with its weights, and room for what it keeps."""

    pool: KVSize
    make_runner: Callable[[ReqToTokenPool], BatchRunner]  # for the rows of one scheduler
    make_projections: MakeProjections  # of LoRA adapters
    remark: str = ""  # what its operator should know
    gpu: GpuCard | None = None


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
        self._step = StepLimits.of(config, on_gpu=self._on_gpu)
        self._config = config
        self._channel = channel
        self._phases = phases or LoadPhases()
        self._told_progress = 0.0

    def load(self) -> Engine:
        with memory_for(
            "an engine beside what is there",
            "a smaller gpu_memory_utilization or num_kv_tokens leaves room",
        ):
            return self._load()

    def _load(self) -> Engine:
        self._tell("read configuration", 0.0)
        model_config = read_model_config(Path(self._config.model_path))
        torch.set_num_threads(
            self._config.num_threads or _default_num_threads(model_config, self._config.tp)
        )
        dtype = choose_dtype(self._config.dtype, model_config, on_gpu=self._on_gpu)
        max_context_len = self._max_context_len(model_config)
        grammars = self._make_grammars(model_config)
        with torch.inference_mode():
            loaded = self._load_model(model_config, dtype, max_context_len, grammars)
        budget = StepBudget(
            self._step.max_step_tokens, self._step.max_running, self._config.max_step_s
        )
        self._tell("warm up", 1.0)
        num_warm_up_tokens = min(
            max_context_len, self._step.max_step_tokens, loaded.pool.num_tokens
        )
        parts = (loaded.make_runner, model_config, loaded.pool, max_context_len)
        pooling = None
        if isinstance(model_config, EncoderConfig):
            pooling = PoolingParams(PoolingKind.ENCODED)
        one_token_step_s = _warm_up(*self._make_books(*parts), budget, num_warm_up_tokens, pooling)
        return Engine(
            self._channel,
            *self._make_books(*parts),
            budget,
            self._limits(model_config, loaded, max_context_len, one_token_step_s),
            StopCheck(model_config.eos_token_ids, max_context_len),
            GrammarQueue(grammars, self._config.grammar_timeout_s),
            AdapterPool(
                loaded.make_projections,
                dtype,
                self._config.max_loras,
                self._config.max_lora_rank,
            ),
            overlap_depth=int(self._step.has_overlap),
            vision=model_config.vision,
            free_memory=FreeMemory(self._gpu) if self._gpu is not None and self._on_gpu else None,
        )

    def _make_grammars(self, model_config: ModelConfig) -> GrammarBackend:
        num_cores = num_usable_cores()
        return LLGuidanceBackend(
            Path(self._config.model_path),
            model_config.vocab_size,
            model_config.eos_token_ids,
            num_cores if num_cores >= MIN_PARALLEL_CORES else 1,
        )

    def _load_model(
        self,
        model_config: ModelConfig,
        dtype: torch.dtype,
        max_context_len: int,
        grammars: GrammarBackend,
    ) -> LoadedModel:
        if self._gpu is not None:
            return self._load_on_gpu(self._gpu, model_config, dtype, max_context_len, grammars)
        path, load_format = Path(self._config.model_path), self._config.load_format
        check_memory(self._config, model_config, dtype, max_context_len)
        self._tell("prepare kernels", 0.0)  # the first time the C++ compiler runs
        library = choose_native_library(self._config, model_config, dtype)
        is_native = library is not None
        determinism.check_on_cpu(self._config, model_config, dtype, is_native=is_native)
        self._tell(LOAD_WEIGHTS, 0.0)
        if isinstance(model_config, EncoderConfig):
            return self._load_encoder(HostDevice(), model_config, dtype, max_context_len)
        if library is not None:
            assert isinstance(model_config, DecoderConfig)
            with open_weights(model_config, path, load_format, dtype, self._on_progress) as reader:
                weights = NativeWeights(library, model_config, reader)
            pool = self._make_pool(model_config, dtype)
            forward = NativeForward(weights, pool, max_context_len, torch.get_num_threads())
            return LoadedModel(
                pool,
                lambda req_to_token: ModelRunner(
                    forward, pool, req_to_token, model_config.num_outputs, grammars
                ),
                forward.lora_projections,
            )
        model = load_model(
            model_config, path, load_format, dtype, max_context_len, self._on_progress
        )
        pool = self._make_pool(model_config, dtype)
        attention = TorchAttentionBackend(pool, model.attention_layers)
        image_encoder = None
        if model_config.vision is not None:
            assert isinstance(model, TransformersModel)
            image_encoder = ImageEncoder(model, model_config.vision)
        torch_forward = TorchForward(model, attention)
        return LoadedModel(
            pool,
            lambda req_to_token: ModelRunner(
                torch_forward, pool, req_to_token, model_config.num_outputs, grammars, image_encoder
            ),
            torch_forward.lora_projections,
        )

    def _load_encoder(
        self,
        device: GpuDevice,
        model_config: EncoderConfig,
        dtype: torch.dtype,
        max_context_len: int,
    ) -> LoadedModel:
        with memory_for("the weights", "a smaller model or a larger GPU has room"):
            encoder = load_encoder(
                model_config,
                Path(self._config.model_path),
                self._config.load_format,
                dtype,
                self._on_progress,
                device.torch_device,
            )
        return LoadedModel(
            self._make_empty_pool(max_context_len, dtype),
            lambda _: EncoderRunner(encoder, device),
            encoder.lora_projections,
            gpu=gpu_card(device, dtype, "torch", device.held_bytes()),
        )

    def _load_on_gpu(
        self,
        gpu: GpuDevice,
        model_config: ModelConfig,
        dtype: torch.dtype,
        max_context_len: int,
        grammars: GrammarBackend,
    ) -> LoadedModel:
        """Raises ConfigError."""
        config, followers, group = self._config, None, None
        determinism.check_on_gpu(config, model_config)
        if isinstance(model_config, EncoderConfig) and config.tp == 1:
            self._tell(LOAD_WEIGHTS, 0.0)
            return self._load_encoder(gpu, model_config, dtype, max_context_len)
        layers = model_config.attention_layers
        if config.tp > 1:
            if not isinstance(model_config, DecoderConfig):
                raise ConfigError(
                    f"tp={config.tp} is not possible with {model_config.architecture}: only models "
                    f"of {', '.join(FUSED_ARCHITECTURES)} are divided; tp=1 runs it on one GPU"
                )
            self._tell("start ranks", 0.0)
            config = rank_config(config, self._step, model_config, dtype, max_context_len)
            followers = Followers.start(config, gpu)
            group = followers.group
            layers = divide(model_config, config.tp).attention_layers
        self._tell("choose attention kernels", 0.0)
        attention = choose_attention(config, gpu, layers, dtype, self._step, group)
        self._tell(LOAD_WEIGHTS, 0.0)
        model = load_gpu_model(
            config,
            model_config,
            dtype,
            max_context_len,
            gpu,
            self._on_progress,
            group,
        )
        self._tell("capture CUDA graphs", 1.0)
        loaded = GpuModel(
            config,
            self._step,
            gpu,
            model,
            model_config,
            dtype,
            max_context_len,
            attention,
            group,
        )
        return LoadedModel(
            loaded.pool,
            lambda req_to_token: loaded.make_runner(req_to_token, grammars, followers),
            loaded.lora_projections if group is None else _refuse_adapter,
            loaded.remark,
            loaded.card,
        )

    def _max_context_len(self, model_config: ModelConfig) -> int:
        wanted = self._config.max_context_len
        limit = model_config.max_context_limit
        if wanted is not None and wanted > limit:
            raise ConfigError(f"max_context_len={wanted} is more than the model's {limit}")
        return wanted or model_config.max_context_len

    def _make_pool(self, model_config: ModelConfig, dtype: torch.dtype) -> KVCachePool:
        bytes_per_token = model_config.kv_bytes_per_token(dtype.itemsize)
        layers = model_config.attention_layers
        return KVCachePool(
            len(layers),
            num_kv_pages(self._config, bytes_per_token),
            self._config.page_size,
            layers[0].num_kv_heads,
            layers[0].head_dim,
            dtype,
        )

    def _make_empty_pool(self, max_context_len: int, dtype: torch.dtype) -> KVCachePool:
        """Slots without anything in them: the scheduler admits by them."""
        page_size = self._config.page_size
        num_tokens = self._config.num_kv_tokens
        if num_tokens is None:
            num_tokens = self._step.max_running * (max_context_len + page_size)
        return KVCachePool(0, max(1, num_tokens // page_size), page_size, 1, 1, dtype)

    def _make_books(
        self,
        make_runner: Callable[[ReqToTokenPool], BatchRunner],
        model_config: ModelConfig,
        pool: KVSize,
        max_context_len: int,
    ) -> tuple[Scheduler, BatchRunner]:
        """A scheduler with empty books, and the runner that reads them."""
        max_running = self._step.max_running
        ledger = KVLedger(
            pool.num_pages,
            pool.page_size,
            max_running,
            max_context_len,
            self._config.max_pinned_share,
        )
        return (
            Scheduler(
                ledger,
                max_running,
                max_context_len,
                model_config.vocab_size,
                self._config.schedule_policy,
                self._config.priority_aging_s,
                self._make_drafter(),
            ),
            make_runner(ledger.req_to_token),
        )

    def _make_drafter(self) -> NgramDrafter | None:
        config = self._config
        if config.speculate == "off":
            return None
        return NgramDrafter(config.num_draft_tokens, config.min_ngram_len, config.max_ngram_len)

    def _limits(
        self,
        model_config: ModelConfig,
        loaded: LoadedModel,
        max_context_len: int,
        one_token_step_s: float,
    ) -> EngineReady:
        pool = loaded.pool
        return EngineReady(
            max_context_len=max_context_len,
            vocab_size=model_config.vocab_size,
            max_running=self._step.max_running,
            num_kv_tokens=pool.num_tokens,
            max_step_tokens=self._step.max_step_tokens,
            one_token_step_s=one_token_step_s,
            num_pinnable_tokens=int(pool.num_pages * self._config.max_pinned_share)
            * pool.page_size,
            startup_s=self._phases.end(),
            remark=loaded.remark,
            gpu=loaded.gpu if self._on_gpu else None,
        )

    def _tell(self, phase: str, progress: float) -> None:
        self._phases.enter(phase)
        self._told_progress = progress
        self._channel.send(EngineLoading(phase, progress))

    def _on_progress(self, progress: float) -> None:
        if progress - self._told_progress >= PROGRESS_GRAIN or progress == 1.0:
            self._tell(LOAD_WEIGHTS, progress)


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
        budget.on_step(batch.num_tokens, elapsed_s)
        if result.num_fitting is not None:
            budget.on_shortage(result.num_fitting)
    return elapsed_s


def _default_num_threads(model_config: ModelConfig, num_ranks: int) -> int:
    is_small = model_config.num_parameters < MAX_PARAMETERS_OF_ONE_THREAD
    return 1 if is_small else max(1, num_usable_cores() // num_ranks)


def _choose_gpu(config: EngineConfig, given: GpuDevice | None) -> GpuDevice | None:
    """None for the CPU, which several ranks take for a GPU. Raises ConfigError when it must be one
    and there is none, or there are fewer than ranks.
    """
    if config.device == "cpu":
        return HostDevice() if config.tp > 1 else None
    if given is not None:
        return given
    if config.device == "cuda" and not has_gpu():
        raise ConfigError("device=cuda is not possible: torch finds no NVIDIA GPU")
    if config.tp > 1 and num_gpus() < config.tp:
        raise ConfigError(
            f"tp={config.tp} needs {config.tp} NVIDIA GPUs, torch finds {num_gpus()}; with "
            "device=cpu it can be tried without"
        )
    return CudaDevice() if has_gpu() else None


def _refuse_adapter(_: LoraWeights) -> dict[str, LoraProjection]:
    raise ConfigError("LoRA adapters are not possible with tp above 1 yet")
