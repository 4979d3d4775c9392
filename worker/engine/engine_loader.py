"""Builds an engine from its configuration: model, memory, scheduler."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from shared.errors import ConfigError
from shared.protocol import SamplingParams
from worker.engine.attention.torch_attention import TorchAttentionBackend
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.host_limits import available_memory_bytes, num_usable_cores
from worker.engine.kv.kv_cache_pool import KVCachePool
from worker.engine.kv.kv_ledger import KVLedger
from worker.engine.model_runner import Model, ModelRunner
from worker.engine.models.dtype_choice import choose_dtype
from worker.engine.models.llama import LlamaModel
from worker.engine.models.loader import CheckpointReader
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.registry import read_model_config
from worker.engine.req import Req
from worker.engine.scheduler import Scheduler
from worker.engine.step_budget import StepBudget
from worker.engine.stop_check import StopCheck
from worker.engine_channel import EngineChannel
from worker.engine_messages import EngineLoading, EngineReady

MAX_DEFAULT_KV_BYTES = 1 << 30
DEFAULT_KV_SHARE = 0.25  # of the available memory
MAX_PARAMETERS_OF_ONE_THREAD = 20_000_000  # below, steps are too short to be shared
PROGRESS_GRAIN = 0.05


class EngineLoader:
    """Loads step by step, and tells how far it is. Every failure is a ConfigError."""

    def __init__(self, config: EngineConfig, channel: EngineChannel) -> None:
        config.check()
        self._config = config
        self._channel = channel
        self._told_progress = 0.0

    def load(self) -> Engine:
        self._tell("read configuration", 0.0)
        model_config = read_model_config(Path(self._config.model_path))
        torch.set_num_threads(self._config.num_threads or _default_num_threads(model_config))
        dtype = choose_dtype(self._config.dtype, model_config)
        max_context_len = self._max_context_len(model_config)
        with torch.inference_mode():
            model = self._load_model(model_config, dtype, max_context_len)
        num_pages = self._num_kv_pages(model_config, dtype)
        pool = KVCachePool(
            model_config.num_layers,
            num_pages,
            self._config.page_size,
            model_config.num_kv_heads,
            model_config.head_dim,
            dtype,
        )
        stop_check = StopCheck(model_config.eos_token_ids, max_context_len)
        self._tell("warm up", 1.0)
        num_warm_up_tokens = min(max_context_len, self._config.max_step_tokens, pool.num_tokens)
        budget = StepBudget(
            self._config.max_step_tokens, self._config.max_running, self._config.max_step_s
        )
        self._warm_up(
            budget,
            *self._scheduled(model, model_config, pool, num_pages, max_context_len),
            num_warm_up_tokens,
        )
        scheduler, runner = self._scheduled(model, model_config, pool, num_pages, max_context_len)
        limits = EngineReady(
            max_context_len=max_context_len,
            vocab_size=model_config.vocab_size,
            max_running=self._config.max_running,
            num_kv_tokens=num_pages * self._config.page_size,
            max_step_tokens=self._config.max_step_tokens,
        )
        return Engine(self._channel, scheduler, runner, budget, limits, stop_check)

    def _load_model(
        self, model_config: ModelConfig, dtype: torch.dtype, max_context_len: int
    ) -> Model:
        self._tell("load weights", 0.0)
        with CheckpointReader(Path(self._config.model_path), dtype, self._on_progress) as reader:
            return LlamaModel(model_config, reader, dtype, max_context_len)

    def _max_context_len(self, model_config: ModelConfig) -> int:
        wanted = self._config.max_context_len
        if wanted is not None and wanted > model_config.max_context_len:
            raise ConfigError(
                f"max_context_len={wanted} is more than the model's {model_config.max_context_len}"
            )
        return wanted or model_config.max_context_len

    def _num_kv_pages(self, model_config: ModelConfig, dtype: torch.dtype) -> int:
        page_size = self._config.page_size
        if self._config.num_kv_tokens is not None:
            num_pages = self._config.num_kv_tokens // page_size
        else:
            page_bytes = page_size * model_config.kv_bytes_per_token(dtype.itemsize)
            num_pages = self._kv_bytes() // page_bytes
        if num_pages < 1:
            raise ConfigError(
                f"the memory for keys and values does not hold one page of {page_size} tokens"
            )
        return num_pages

    def _kv_bytes(self) -> int:
        if self._config.kv_memory_bytes is not None:
            return self._config.kv_memory_bytes
        return min(MAX_DEFAULT_KV_BYTES, int(available_memory_bytes() * DEFAULT_KV_SHARE))

    def _scheduled(
        self,
        model: Model,
        model_config: ModelConfig,
        pool: KVCachePool,
        num_pages: int,
        max_context_len: int,
    ) -> tuple[Scheduler, ModelRunner]:
        """A scheduler with empty books, and the runner that reads them."""
        config = self._config
        ledger = KVLedger(num_pages, config.page_size, config.max_running, max_context_len)
        attention = TorchAttentionBackend(pool, model_config.num_heads)
        return (
            Scheduler(ledger, config.max_running, max_context_len, model_config.vocab_size),
            ModelRunner(model, attention, pool, ledger.req_to_token, model_config.vocab_size),
        )

    def _warm_up(
        self, budget: StepBudget, scheduler: Scheduler, runner: ModelRunner, num_tokens: int
    ) -> None:
        """One full step of prefill and one of decoding, with books that are thrown away."""
        prompt_ids = [0] * max(1, num_tokens - 2)
        sampling = SamplingParams(max_tokens=2, seed=0)
        scheduler.add(Req(0, prompt_ids, [], sampling, 0, 0, StopCheck((), num_tokens)))
        while (batch := scheduler.next_batch(budget.num_tokens)) is not None:
            begin = time.monotonic()
            scheduler.process(batch, runner.forward(batch))
            budget.on_step(batch.num_tokens, time.monotonic() - begin)

    def _tell(self, phase: str, progress: float) -> None:
        self._told_progress = progress
        self._channel.send(EngineLoading(phase, progress))

    def _on_progress(self, progress: float) -> None:
        if progress - self._told_progress >= PROGRESS_GRAIN or progress == 1.0:
            self._tell("load weights", progress)


def _default_num_threads(model_config: ModelConfig) -> int:
    is_small = model_config.num_parameters < MAX_PARAMETERS_OF_ONE_THREAD
    return 1 if is_small else num_usable_cores()
