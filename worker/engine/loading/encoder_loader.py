"""Encoders, on the CPU or a GPU: they keep nothing of what they have computed."""

from __future__ import annotations

from pathlib import Path

import torch

from shared.protocol.role_cards import LOAD_WEIGHTS
from shared.protocol.sampling import PoolingKind, PoolingParams
from worker.engine.cache.page_allocator import num_empty_pages
from worker.engine.cpu.kv_cache_pool import KVCachePool
from worker.engine.device.gpu_card import gpu_card
from worker.engine.device.gpu_memory import memory_for
from worker.engine.device.host_device import HostDevice
from worker.engine.encoder.encoder_model import EncoderModel, load_encoder
from worker.engine.encoder.encoder_runner import EncoderRunner
from worker.engine.grammar.grammar_matcher import GrammarBackend
from worker.engine.layers.kv_layout import KVLayout
from worker.engine.loading import determinism
from worker.engine.loading.cpu_loader import prepare_on_cpu
from worker.engine.loading.model_loader import LoadedModel, LoadSite
from worker.engine.models.encoder_config import EncoderConfig
from worker.engine.models.model_config import ModelConfig
from worker.engine.models.model_setup import ModelSetup


class EncoderLoader:
    """The `ModelLoader` of whatever reads a text as a whole."""

    def __init__(self, site: LoadSite) -> None:
        self._site = site

    def suits(self, model: ModelConfig) -> bool:
        return isinstance(model, EncoderConfig)

    def load(self, setup: ModelSetup, grammars: GrammarBackend) -> LoadedModel:
        """Raises ConfigError."""
        if self._site.gpu is None:
            prepare_on_cpu(self._site, setup)
        else:
            determinism.check_on_gpu(self._site.config, setup.config)
        self._site.progress.enter(LOAD_WEIGHTS)
        device = self._site.gpu or HostDevice()
        encoder = self._load_weights(setup, device.torch_device)
        return LoadedModel(
            self._make_pool(setup),
            lambda _: EncoderRunner(encoder, device),
            encoder.lora_projections,
            pooling=PoolingParams(PoolingKind.ENCODED),
            gpu=gpu_card(device, setup.dtype, "torch", device.held_bytes()),
        )

    def _load_weights(self, setup: ModelSetup, device: torch.device) -> EncoderModel:
        assert isinstance(setup.config, EncoderConfig), "it suits no other"
        with memory_for("the weights", "a smaller model or a larger GPU has room"):
            return load_encoder(
                setup.config,
                Path(self._site.config.model_path),
                self._site.config.load_format,
                setup.dtype,
                self._site.progress.on_weights,
                device,
            )

    def _make_pool(self, setup: ModelSetup) -> KVCachePool:
        """Slots without anything in them: the scheduler admits by them."""
        config, max_running = self._site.config, self._site.step.max_running
        layout = KVLayout.of((), setup.dtype, config.page_size)
        return KVCachePool(layout, num_empty_pages(config, max_running, setup.max_context_len))
